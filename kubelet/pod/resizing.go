// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/translate"
)

// resizeRetry is how long a refused resize waits at most before it is tried again.
const resizeRetry = 10 * time.Second

// resizes is what the worker remembers of changes of the pod's resources.
type resizes struct {
	limits *podcgroup.Limits // of the pod's cgroup, as last set; nil: unknown
	said   resizing
}

// resizing is what the events last said of the pod's resizes.
type resizing struct {
	generation int64  // of the pod, whose resize it is
	refused    string // the reason; empty: it is not refused
	begun      bool
}

// recall takes over what the pod's conditions say of a resize that an earlier run of the kubelet announced.
func (r *resizes) recall(pod *corev1.Pod) {
	if c := podkind.Condition(pod, corev1.PodResizeInProgress); c != nil {
		r.said = resizing{generation: c.ObservedGeneration, begun: true}
	}
	if c := podkind.Condition(pod, corev1.PodResizePending); c != nil {
		r.said = resizing{generation: c.ObservedGeneration, refused: c.Reason}
	}
}

// resizeDenial asks whether the node can give running containers what they should have now; nil: it can, or nothing is
// to change.
func (l *loop) resizeDenial(in *decide.Input) *decide.Refusal {
	if in.Gone || in.Pod.DeletionTimestamp != nil || !in.WantsResize() {
		return nil
	}
	return l.env.Admission.Resize(in.Pod)
}

// announce records events of how far the pod's resize has come, one for each turn that it takes.
func (r *resizes) announce(events record.EventRecorder, in decide.Input) {
	was := r.said
	now := resizing{generation: in.Pod.Generation}
	if in.Refused != nil {
		now.refused = in.Refused.Reason
	} else {
		now.begun = in.End == nil && !in.Gone && in.Pod.DeletionTimestamp == nil && in.WantsResize()
	}
	switch {
	case now == was:
	case now.refused != "":
		event := "ResizeDeferred"
		if now.refused == corev1.PodReasonInfeasible {
			event = "ResizeInfeasible"
		}
		events.Event(podRef(in.Pod), corev1.EventTypeWarning, event,
			resizeMessage(in.Pod, now.refused, now.generation, in.Refused.Message))
	case now.begun:
		events.Event(podRef(in.Pod), corev1.EventTypeNormal, "ResizeStarted",
			resizeMessage(in.Pod, "started", now.generation, ""))
	case was.begun && in.Pod.DeletionTimestamp == nil:
		if in.Restarting() {
			return // a container that a resize restarts is not there yet
		}
		events.Event(podRef(in.Pod), corev1.EventTypeNormal, "ResizeCompleted",
			resizeMessage(in.Pod, "completed", was.generation, ""))
	}
	r.said = now
}

// resizeMessage is the text of an event of a resize, in which programs find the resources of all containers.
func resizeMessage(pod *corev1.Pod, what string, generation int64, problem string) string {
	type resources struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	var all struct {
		InitContainers []resources `json:"initContainers,omitempty"`
		Containers     []resources `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}
	for c, kind := range podinfo.All(pod) {
		one := resources{Name: c.Name, Resources: c.Resources}
		switch kind {
		case podinfo.Init, podinfo.SideCar:
			all.InitContainers = append(all.InitContainers, one)
		case podinfo.Main:
			all.Containers = append(all.Containers, one)
		case podinfo.Ephemeral:
		}
	}
	all.Generation = generation
	all.Error = problem
	text, err := json.Marshal(all)
	if err != nil {
		return "Pod resize " + what // resources that were decoded can be encoded
	}
	return "Pod resize " + what + ": " + string(text)
}

// resize gives a running container its new resources.
func (l *loop) resize(ctx context.Context, in decide.Input, action decide.Action) func() {
	c, _ := podinfo.Find(in.Pod, action.Container)
	hash := podinfo.ResourcesHash(in.Pod, c)
	want := translate.Resources(in.Pod, c, l.env.Machine)
	begin := time.Now()
	err := checkMemory(ctx, l.env.Runtime, in.Observed.Find(action.ID), want.GetMemoryLimitInBytes())
	if err == nil {
		err = l.env.growCgroup(l.uid, in.Pod)
	}
	if err == nil {
		_, err = l.env.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: action.ID,
			Linux:       want,
		})
	}
	done := l.retryResize(ctx, in, action, begin, err)
	return func() {
		done()
		if err == nil {
			l.s.containers.run(action.ID).resized = hash
		}
	}
}

// checkMemory returns why a container must not get a memory limit: it uses more already, and the kernel would kill
// processes of it.
func checkMemory(
	ctx context.Context, runtime runtimeapi.RuntimeServiceClient, cur *runtimestate.Container, limit int64,
) error {
	if cur == nil || limit <= 0 {
		return nil
	}
	if have := cur.Resources.GetMemoryLimitInBytes(); have > 0 && limit >= have {
		return nil
	}
	resp, err := runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: cur.ID})
	if err != nil {
		return fmt.Errorf("read the memory that container %s uses: %w", cur.Name, err)
	}
	if used := resp.GetStats().GetMemory().GetUsageBytes().GetValue(); used > uint64(limit) {
		return fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", cur.Name, limit,
			used)
	}
	return nil
}

// resizePod sets the limits of the pod's cgroup, then of its sandbox, which may be a machine of that size.
func (l *loop) resizePod(ctx context.Context, in decide.Input, action decide.Action) func() {
	limits := translate.PodLimits(in.Pod)
	begin := time.Now()
	err := l.env.cgroup("update", func(m *podcgroup.Manager) error { return m.Make(l.uid, limits) })
	if err == nil {
		_, err = l.env.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: in.Observed.Current().ID,
			Resources:    translate.PodResources(in.Pod),
		})
		if grpcstatus.Code(err) == codes.Unimplemented {
			err = nil // the cgroup has them
		}
	}
	done := l.retryResize(ctx, in, action, begin, err)
	return func() {
		done()
		if err == nil {
			l.s.resizes.limits = &limits
		}
	}
}

// retryResize is retry for a resize: its failure is shown in the pod's status, and in an event when it is a new one.
func (l *loop) retryResize(ctx context.Context, in decide.Input, action decide.Action, begin time.Time, err error) func() {
	done := l.retry(ctx, action, in.Pod, string(action.Op), err)
	if ctx.Err() == nil {
		l.env.Metrics.PodResized(time.Since(begin), err)
	}
	return func() {
		was := l.s.actions.failed[action.Key()].Message
		done()
		failed, ok := l.s.actions.failed[action.Key()]
		if !ok || err == nil || ctx.Err() != nil {
			return
		}
		failed.Message = grpcText(err)
		l.s.actions.failed[action.Key()] = failed
		if failed.Message != was {
			l.env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, "ResizeError",
				resizeMessage(in.Pod, "error", in.Pod.Generation, failed.Message))
		}
	}
}

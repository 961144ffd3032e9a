// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/cri"
	"keelson/kubelet/eviction"
	"keelson/kubelet/logs"
	"keelson/kubelet/metrics"
	"keelson/kubelet/node"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/stats"
)

// underPressure returns why a node with a pressure condition rejects a pod; reason is empty if it does not.
func (a *admission) underPressure(p *corev1.Pod) (reason, message string) {
	if text := eviction.Refuse(a.pressure.Conditions(), p, podinfo.Critical(p), podinfo.QOS(p)); text != "" {
		return reject(eviction.Reason, "%s", text)
	}
	return "", ""
}

// evictionNode implements eviction.Node.
type evictionNode struct {
	workers *workers
	stats   *stats.Source
	self    *node.Self
	runtime cri.Client
	events  *client.Events
	metrics *metrics.Metrics
	log     *slog.Logger
}

// Pods returns the pods that have not ended.
func (e evictionNode) Pods() []*corev1.Pod {
	all := e.workers.All()
	there := make(map[string]bool, len(all))
	for _, p := range all {
		there[string(p.UID)] = true
	}
	e.stats.Forget(func(uid string) bool { return there[uid] })
	return slices.DeleteFunc(all, func(p *corev1.Pod) bool { return podkind.TerminalPhase(p.Status.Phase) })
}

// Critical reports whether the pod is a critical pod, which is never evicted.
func (e evictionNode) Critical(p *corev1.Pod) bool { return podinfo.Critical(p) }

// Evict evicts a pod and records the event.
func (e evictionNode) Evict(v eviction.Eviction) <-chan struct{} {
	worker := e.workers.find(string(v.Pod.UID))
	if worker == nil {
		return nil
	}
	end := decide.End{
		Phase:   corev1.PodFailed,
		Reason:  eviction.Reason,
		Message: v.Message,
		Grace:   v.Grace,
	}
	if v.Disruption {
		end.Condition = &corev1.PodCondition{
			Type:    corev1.DisruptionTarget,
			Status:  corev1.ConditionTrue,
			Reason:  corev1.PodReasonTerminationByKubelet,
			Message: v.Message,
		}
	}
	over := worker.Evict(end)
	if over == nil {
		return nil
	}
	e.metrics.PodEvicted(string(v.Signal))
	e.log.Info("pod evicted", "pod", podinfo.FullName(v.Pod), "message", v.Message)
	e.events.AnnotatedEventf(&corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Namespace:  v.Pod.Namespace,
		Name:       v.Pod.Name,
		UID:        v.Pod.UID,
	}, v.Notes, corev1.EventTypeWarning, eviction.Reason, "%s", v.Message)
	return over
}

// EvictionStarting records the event EvictionThresholdMet.
func (e evictionNode) EvictionStarting(resource corev1.ResourceName) {
	e.events.Eventf(e.self.Ref(), corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s",
		resource)
}

// ReclaimFailed records the event FreeDiskSpaceFailed.
func (e evictionNode) ReclaimFailed(message string) {
	e.events.Event(e.self.Ref(), corev1.EventTypeWarning, "FreeDiskSpaceFailed", message)
}

// ConditionsChanged makes the node's status be written.
func (e evictionNode) ConditionsChanged() { e.self.Changed() }

// Reclaim removes dead containers with their logs, and then images that no container and no pod of the node uses.
func (e evictionNode) Reclaim(ctx context.Context) error {
	err := e.deadContainers(ctx)
	images := imageCleaner{runtime: e.runtime, workers: e.workers, log: e.log}
	unused, listed := images.unused(ctx)
	err = errors.Join(err, listed, images.remove(ctx, unused))
	e.self.Changed()
	return err
}

// deadContainers removes all dead containers of pods that have ended, and of others those that ran before the last run.
func (e evictionNode) deadContainers(ctx context.Context) error {
	rt := e.runtime.Runtime
	list, err := rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list dead containers: %w", err)
	}
	key := func(c *runtimeapi.Container) string {
		return c.GetLabels()[runtimestate.LabelPodUID] + "/" + c.GetLabels()[runtimestate.LabelContainerName]
	}
	newest := map[string]int64{}
	for _, c := range list.GetContainers() {
		newest[key(c)] = max(newest[key(c)], c.GetCreatedAt())
	}
	var errs []error
	for _, c := range list.GetContainers() {
		w := e.workers.find(c.GetLabels()[runtimestate.LabelPodUID])
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || w == nil {
			continue // what no pod claims is removed when the kubelet starts
		}
		if !podkind.TerminalPhase(w.Pod().Status.Phase) && c.GetCreatedAt() == newest[key(c)] {
			continue
		}
		errs = append(errs, e.removeContainer(ctx, c.GetId()))
	}
	return errors.Join(errs...)
}

func (e evictionNode) removeContainer(ctx context.Context, id string) error {
	rt := e.runtime.Runtime
	st, err := rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	if _, err := rt.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("remove dead container %s: %w", id, err)
	}
	return logs.Remove(st.GetStatus().GetLogPath())
}

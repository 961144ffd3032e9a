// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/scheduler/core"
)

// Reasons of the PodScheduled condition.
const (
	reasonUnschedulable = corev1.PodReasonUnschedulable
	reasonError         = corev1.PodReasonSchedulerError
)

// maxNoteLength is the maximum length of an event's note.
const maxNoteLength = 1024

// concurrentEvents is the maximum number of concurrent writes of events, so that bindings are not delayed. With
// maxPendingEvents waiting, further events are dropped.
const (
	concurrentEvents = 1
	maxPendingEvents = 20000
)

// reporter says what became of pods: in events, and in the status of those that have no node.
type reporter struct {
	client    client.Interface
	log       *slog.Logger
	recorders map[string]events.EventRecorder // by scheduler name, once it is started
}

// start starts the recorders of the profiles; the result stops them.
func (r *reporter) start(ctx context.Context, profiles map[string]*core.Profile) (stop func(), err error) {
	broadcaster := events.NewBroadcaster(&limitedSink{
		inner:   &events.EventSinkImpl{Interface: r.client.EventsV1()},
		writing: make(chan struct{}, concurrentEvents),
		pending: make(chan struct{}, maxPendingEvents),
	})
	r.recorders = map[string]events.EventRecorder{}
	for name := range profiles {
		r.recorders[name] = broadcaster.NewRecorder(scheme.Scheme, name)
	}
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start recording events: %w", err)
	}
	return broadcaster.Shutdown, nil
}

// about returns the recorder of a pod's profile.
func (r *reporter) about(pod *corev1.Pod) events.EventRecorder {
	return r.recorders[pod.Spec.SchedulerName]
}

// limitedSink writes few events at a time; the others wait.
type limitedSink struct {
	inner            events.EventSink
	writing, pending chan struct{}
}

var errTooManyEvents = apierrors.NewTooManyRequestsError("too many events are waiting")

func (s *limitedSink) acquire(ctx context.Context) (release func(), err error) {
	select {
	case s.pending <- struct{}{}:
	default:
		return nil, errTooManyEvents
	}
	select {
	case s.writing <- struct{}{}:
		return func() {
			<-s.writing
			<-s.pending
		}, nil
	case <-ctx.Done():
		<-s.pending
		return nil, ctx.Err()
	}
}

func (s *limitedSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	release, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.inner.Create(ctx, e)
}

func (s *limitedSink) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	release, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.inner.Update(ctx, e)
}

func (s *limitedSink) Patch(ctx context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	release, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.inner.Patch(ctx, e, data)
}

func (r *reporter) scheduled(pod *corev1.Pod, node string) {
	r.about(pod).Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
}

func (r *reporter) preempted(victim, preemptor *corev1.Pod, node string, deleted bool) {
	where := ""
	if !deleted {
		where = " (in kube-scheduler memory)."
	}
	r.about(preemptor).Eventf(victim, preemptor, corev1.EventTypeNormal, "Preempted", "Preempting",
		"Preempted by pod %v on node %v%s", preemptor.UID, node, where)
}

// extenderIgnored records an error of an extender that was ignored.
func (r *reporter) extenderIgnored(pod *corev1.Pod, why string) {
	r.about(pod).Eventf(pod, nil, corev1.EventTypeWarning, "ExtenderIgnored", "Scheduling", "%s", why)
}

// truncateNote cuts a message to maxNoteLength.
func truncateNote(message string) string {
	if len(message) > maxNoteLength {
		return message[:maxNoteLength-len(" ...")] + " ..."
	}
	return message
}

// noNode records an event that says why a pod has no node. It returns the job that writes the same to the pod's status;
// nil: the status says it already.
func (r *reporter) noNode(pod *corev1.Pod, reason, message, nominated string) func(context.Context) {
	r.about(pod).Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s",
		truncateNote(message))
	patch := statusPatch(pod, reason, message, nominated)
	if patch == nil {
		return nil
	}
	return func(ctx context.Context) {
		err := r.patchStatus(ctx, pod, patch)
		for tries := 0; tries < 3 && apierrors.IsConflict(err) && reason != reasonError; tries++ {
			err = r.reportOnLive(ctx, pod, reason, message, nominated)
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			r.log.Warn("cannot write the condition PodScheduled of a pod", "pod", pod.Namespace+"/"+pod.Name, "err",
				err)
		}
	}
}

func (r *reporter) patchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	_, err := r.client.PodWrites(pod.Namespace).PatchStatus(ctx, pod.Name, patch)
	return err
}

// reportOnLive patches the status of the server's current version of pod, unless the report is outdated: the pod has a
// node, another pod has its name, or a later attempt has written the condition.
func (r *reporter) reportOnLive(ctx context.Context, pod *corev1.Pod, reason, message, nominated string) error {
	live, err := r.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	was := podkind.Condition(pod, corev1.PodScheduled)
	is := podkind.Condition(live, corev1.PodScheduled)
	if live.UID != pod.UID || live.Spec.NodeName != "" || !equality.Semantic.DeepEqual(was, is) {
		return nil
	}
	patch := statusPatch(live, reason, message, nominated)
	if patch == nil {
		return nil
	}
	return r.patchStatus(ctx, live, patch)
}

// statusPatch returns the patch of a pod's status; nil: nothing changes.
func statusPatch(pod *corev1.Pod, reason, message, nominated string) []byte {
	now := metav1.NewTime(time.Now())
	cond := corev1.PodCondition{
		Type:               corev1.PodScheduled,
		Status:             corev1.ConditionFalse,
		Reason:             reason,
		Message:            message,
		LastTransitionTime: now,
		ObservedGeneration: pod.Generation,
	}
	same := false
	for _, old := range pod.Status.Conditions {
		if old.Type != corev1.PodScheduled {
			continue
		}
		if old.Status == cond.Status {
			cond.LastTransitionTime = old.LastTransitionTime
			same = old.Reason == reason && old.Message == message
		}
	}
	status := map[string]any{}
	if !same {
		status["conditions"] = []corev1.PodCondition{cond}
	}
	if nominated != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = nominated
		if nominated == "" {
			status["nominatedNodeName"] = nil
		}
	}
	if len(status) == 0 {
		return nil
	}
	// The patch is for the version of the pod in the attempt: a slow write must not change a pod that was bound since,
	// by a later attempt or by this one if the response to its binding was lost.
	meta := map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "status": status})
	if err != nil {
		return nil // no value here can fail to encode
	}
	return patch
}

// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	podkind "keelson/api/core/pod"
)

// Reasons of the PodScheduled condition.
const (
	reasonUnschedulable = corev1.PodReasonUnschedulable
	reasonError         = corev1.PodReasonSchedulerError
)

// maxNote is how long an event's note may be.
const maxNote = 1024

// concurrentEvents bounds writes of events, so that bindings go first; maxPendingEvents is from where on events are dropped.
const (
	concurrentEvents = 1
	maxPendingEvents = 20000
)

// startEvents starts the recorder; the result stops it.
func (s *Scheduler) startEvents(ctx context.Context) (stop func(), err error) {
	b := events.NewBroadcaster(&patientSink{
		inner: &events.EventSinkImpl{Interface: s.client.EventsV1()},
		turn:  make(chan struct{}, concurrentEvents), pending: make(chan struct{}, maxPendingEvents),
	})
	for name, p := range s.profiles {
		p.events = b.NewRecorder(scheme.Scheme, name)
	}
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start recording events: %w", err)
	}
	return b.Shutdown, nil
}

// patientSink writes few events at a time and lets the others wait, off every other path.
type patientSink struct {
	inner         events.EventSink
	turn, pending chan struct{}
}

var errTooManyEvents = apierrors.NewTooManyRequestsError("too many events are waiting")

func (s *patientSink) take(ctx context.Context) (give func(), err error) {
	select {
	case s.pending <- struct{}{}:
	default:
		return nil, errTooManyEvents
	}
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn; <-s.pending }, nil
	case <-ctx.Done():
		<-s.pending
		return nil, ctx.Err()
	}
}

func (s *patientSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	give, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	return s.inner.Create(ctx, e)
}

func (s *patientSink) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	give, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	return s.inner.Update(ctx, e)
}

func (s *patientSink) Patch(ctx context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	give, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	return s.inner.Patch(ctx, e, data)
}

func (s *Scheduler) eventScheduled(pod *corev1.Pod, node string) {
	s.profile(pod).events.Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
}

func (s *Scheduler) eventPreempted(victim, preemptor *corev1.Pod, node string) {
	s.profile(preemptor).events.Eventf(victim, preemptor, corev1.EventTypeNormal, "Preempted", "Preempting", "Preempted by pod %v on node %v", preemptor.UID, node)
}

// eventExtender tells what went wrong with an extender and did not keep the pod from being scheduled.
func (s *Scheduler) eventExtender(pod *corev1.Pod, why string) {
	s.profile(pod).events.Eventf(pod, nil, corev1.EventTypeWarning, "ExtenderIgnored", "Scheduling", "%s", why)
}

// clipped cuts a message to the longest note that an event may have.
func clipped(message string) string {
	if len(message) > maxNote {
		return message[:maxNote-len(" ...")] + " ..."
	}
	return message
}

// report tells users why a pod has no node: by an event at once, and in the pod's status if that is news. It returns the job
// that writes the status, nil if there is nothing to write.
func (s *Scheduler) report(pod *corev1.Pod, reason, message, nominated string) func(context.Context) {
	s.profile(pod).events.Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", clipped(message))
	if reason == reasonError {
		nominated = pod.Status.NominatedNodeName
	}
	patch := statusPatch(pod, reason, message, nominated)
	if patch == nil {
		return nil
	}
	return func(ctx context.Context) {
		err := s.patchStatus(ctx, pod, patch)
		for tries := 0; tries < 3 && apierrors.IsConflict(err) && reason != reasonError; tries++ {
			err = s.againstLive(ctx, pod, reason, message, nominated)
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			s.log.Warn("cannot write why a pod is not scheduled", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
	}
}

func (s *Scheduler) patchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	_, err := s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// againstLive says of the server's version of pod what was to be said of pod, unless that is news no more: it has a node, another pod has its
// name, or a later attempt has had its say.
func (s *Scheduler) againstLive(ctx context.Context, pod *corev1.Pod, reason, message, nominated string) error {
	live, err := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	was, is := podkind.Condition(pod, corev1.PodScheduled), podkind.Condition(live, corev1.PodScheduled)
	if live.UID != pod.UID || live.Spec.NodeName != "" || !equality.Semantic.DeepEqual(was, is) {
		return nil
	}
	patch := statusPatch(live, reason, message, nominated)
	if patch == nil {
		return nil
	}
	return s.patchStatus(ctx, live, patch)
}

// statusPatch returns the patch of a pod's status; nil: nothing changes.
func statusPatch(pod *corev1.Pod, reason, message, nominated string) []byte {
	now := metav1.NewTime(time.Now())
	cond := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		LastTransitionTime: now, ObservedGeneration: pod.Generation,
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
	// What is said is for the pod as the attempt saw it: a slow write must not reach one that has been bound meanwhile, be it by a later
	// attempt or by this one, whose answer was lost.
	meta := map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "status": status})
	if err != nil {
		return nil // no value here can fail to encode
	}
	return patch
}

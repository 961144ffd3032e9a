// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/client"
	"keelson/event"
	"keelson/kubelet/metrics"
	"keelson/kubelet/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
)

// probeListener passes probe results to pods, events, metrics and marks.
type probeListener struct {
	workers   *workers
	metrics   *metrics.Metrics
	events    *client.Events
	marks     *event.Recorder
	component string
}

// Tried counts an attempt.
func (n *probeListener) Tried(t probe.Target, o probe.Outcome) { n.metrics.ProbeDone(t, o) }

// Failed makes an Unhealthy event of an attempt that did not succeed.
func (n *probeListener) Failed(target probe.Target, outcome probe.Outcome) {
	_, kind := podinfo.Find(target.Pod, target.Container.Name)
	ref := &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Namespace:  target.Pod.Namespace,
		Name:       target.Pod.Name,
		UID:        target.Pod.UID,
		FieldPath:  "spec." + kind.Field() + "{" + target.Container.Name + "}",
	}
	switch {
	case outcome.Warn:
		n.events.Eventf(ref, corev1.EventTypeWarning, "ProbeWarning", "%s probe warning: %s", target.Kind,
			outcome.Output)
	case outcome.Err != nil:
		n.events.Eventf(ref, corev1.EventTypeWarning, "Unhealthy",
			"%s probe errored and resulted in unknown state: %v", target.Kind, outcome.Err)
	default:
		n.events.Eventf(ref, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", target.Kind, outcome.Output)
	}
}

// maxProbeText limits a probe's output in a mark, without the number of failures.
const maxProbeText = 256 - len(" (1000000000 times in 1000000h0m0s)")

// Changed wakes the pod.
func (n *probeListener) Changed(t probe.Target, r probe.Result, o probe.Outcome, took time.Duration) {
	n.mark(t, r == probe.Success, o, took)
	n.workers.notify(string(t.Pod.UID), pod.Nothing)
}

// StillFailing adds a mark to the pod's timeline: how often a probe has failed by now.
func (n *probeListener) StillFailing(t probe.Target, o probe.Outcome, took time.Duration) {
	n.mark(t, false, o, took)
}

func (n *probeListener) mark(target probe.Target, ok bool, o probe.Outcome, took time.Duration) {
	text := cmp.Or(o.Brief, o.Output)
	text = text[:min(len(text), maxProbeText)]
	if o.Times > 1 {
		text += fmt.Sprintf(" (%d times in %s)", o.Times, o.For.Round(time.Second))
	}
	kinds := map[probe.Kind]string{probe.Readiness: "readiness", probe.Liveness: "liveness", probe.Startup: "startup"}
	n.marks.Emit(event.Event{
		Step:      event.StepProbe,
		Component: n.component,
		At:        time.Now().Add(-took),
		Took:      took,
		Subject: event.Subject{
			Resource:  "pods",
			Namespace: target.Pod.Namespace,
			Name:      target.Pod.Name,
			UID:       string(target.Pod.UID),
		},
		Detail: &event.Probe{
			Container: target.Container.Name,
			Kind:      kinds[target.Kind],
			Action:    probe.Describe(target.Container, target.Probe),
			Success:   ok,
			Output:    text,
		},
	})
}

// notifyingImageService updates the node's status after a pull.
type notifyingImageService struct {
	runtimeapi.ImageServiceClient
	pulled func()
}

// PullImage pulls, and has the node's list of images written again.
func (i notifyingImageService) PullImage(
	ctx context.Context, in *runtimeapi.PullImageRequest, opts ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	out, err := i.ImageServiceClient.PullImage(ctx, in, opts...)
	if err != nil {
		return nil, err
	}
	i.pulled()
	return out, nil
}

// reject returns reason and message of a pod that the node rejects.
func reject(reason, format string, args ...any) (string, string) {
	return reason, "Pod was rejected: " + fmt.Sprintf(format, args...)
}

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

	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/lib/mark"
)

// probeListener passes probe results to pods, events, metrics and marks.
type probeListener struct{ k *Kubelet }

// Tried counts an attempt.
func (n *probeListener) Tried(t probe.Target, o probe.Outcome) { n.k.metrics.ProbeDone(t, o) }

// Failed makes an Unhealthy event of an attempt that did not succeed.
func (n *probeListener) Failed(t probe.Target, o probe.Outcome) {
	_, kind := podinfo.Find(t.Pod, t.Container.Name)
	ref := &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Namespace:  t.Pod.Namespace,
		Name:       t.Pod.Name,
		UID:        t.Pod.UID,
		FieldPath:  "spec." + kind.Field() + "{" + t.Container.Name + "}",
	}
	switch {
	case o.Warn:
		n.k.events.Eventf(ref, corev1.EventTypeWarning, "ProbeWarning", "%s probe warning: %s", t.Kind, o.Output)
	case o.Err != nil:
		n.k.events.Eventf(ref, corev1.EventTypeWarning, "Unhealthy",
			"%s probe errored and resulted in unknown state: %v", t.Kind, o.Err)
	default:
		n.k.events.Eventf(ref, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", t.Kind, o.Output)
	}
}

// maxProbeText limits a probe's output in a mark, without the number of failures.
const maxProbeText = 256 - len(" (1000000000 times in 1000000h0m0s)")

// Changed wakes the pod.
func (n *probeListener) Changed(t probe.Target, r probe.Result, o probe.Outcome, took time.Duration) {
	n.mark(t, r == probe.Success, o, took)
	if w := n.k.worker(string(t.Pod.UID)); w != nil {
		w.Wake()
	}
}

// StillFailing adds to the pod's story how often a probe has failed by now.
func (n *probeListener) StillFailing(t probe.Target, o probe.Outcome, took time.Duration) {
	n.mark(t, false, o, took)
}

func (n *probeListener) mark(t probe.Target, ok bool, o probe.Outcome, took time.Duration) {
	text := cmp.Or(o.Brief, o.Output)
	text = text[:min(len(text), maxProbeText)]
	if o.Times > 1 {
		text += fmt.Sprintf(" (%d times in %s)", o.Times, o.For.Round(time.Second))
	}
	kinds := map[probe.Kind]string{probe.Readiness: "readiness", probe.Liveness: "liveness", probe.Startup: "startup"}
	n.k.cfg.Marks.Emit(mark.Mark{
		Step:      mark.StepProbe,
		Component: n.k.component,
		At:        time.Now().Add(-took),
		Took:      took,
		Subject: mark.Subject{
			Resource:  "pods",
			Namespace: t.Pod.Namespace,
			Name:      t.Pod.Name,
			UID:       string(t.Pod.UID),
		},
		Detail: &mark.Probe{
			Container: t.Container.Name,
			Kind:      kinds[t.Kind],
			Action:    probe.Describe(t.Container, t.Probe),
			Success:   ok,
			Output:    text,
		},
	})
}

func (k *Kubelet) wakeForRefs(uid string) {
	if w := k.worker(uid); w != nil {
		w.RefsChanged()
	}
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

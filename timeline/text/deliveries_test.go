// SPDX-License-Identifier: Apache-2.0

package text

import (
	"bytes"
	"net/http"
	"testing"

	"keelson/event"
	"keelson/timeline/storytest"
)

// watched is the journey with who got which event, and a Service that leads to the pod.
func watched() []event.Event {
	const (
		controllers, scheduler, node = "system:kube-controller-manager", "system:kube-scheduler", "system:node:node-1"
		everything                   = "pods, status.phase!=Failed,status.phase!=Succeeded"
	)
	svc := event.Subject{
		Resource:  "services",
		Namespace: "default",
		Name:      "web",
		UID:       "svc-1",
	}
	return append(journey(),
		storytest.Delivered(950, 40, set, "ADDED", 512, controllers, "replicasets"),
		storytest.Delivered(2150, 50, pod, "ADDED", 513, scheduler, everything),
		storytest.Delivered(2150, 70, pod, "ADDED", 513, controllers, "pods"),
		storytest.Delivered(3200, 30, pod, "MODIFIED", 515, scheduler, everything),
		storytest.Delivered(3200, 90, pod, "ADDED", 515, node, "pods, spec.nodeName=node-1"),
		storytest.Delivered(42800, 60, pod, "MODIFIED", 519, controllers, "pods"),
		event.Event{
			Step:      event.StepReachable,
			Component: "proxy node-1",
			At:        at(49000),
			Took:      us(3000),
			Subject:   pod,
			Detail:    &event.Reachable{Service: "web", Node: "node-1", Front: "10.43.0.9:80"},
		},
		event.Event{
			Step:      event.StepResolvable,
			Component: "dns",
			At:        at(48500),
			Took:      us(20),
			Subject:   svc,
			Detail:    &event.Resolvable{Node: "node-1", Name: "web.default.svc.cluster.local"},
		},
	)
}

func TestSteps(t *testing.T) {
	static := event.Subject{
		Resource:  "pods",
		Namespace: "kube-system",
		Name:      "etcd-node-1",
		UID:       "file-1",
	}
	image := event.Subject{
		Resource:  "pods",
		Namespace: "kube-system",
		Name:      "etcd-node-1",
		UID:       "mirror-1",
	}
	node := func(step event.Step, from, took int, d any) event.Event {
		return event.Event{
			Step:      step,
			Component: "kubelet node-1",
			At:        at(from),
			Took:      us(took),
			Subject:   static,
			Detail:    d,
		}
	}
	for name, c := range map[string]struct {
		marks []event.Event
		pod   event.Subject
		width int
	}{
		"steps":        {watched(), pod, 120},
		"steps-narrow": {watched(), pod, 80},
		"steps-static": {[]event.Event{
			node(event.StepSeen, 0, 0, &event.Seen{Source: "file", File: "/etc/manifests/etcd.yaml"}),
			{
				Step:      event.StepRequest,
				Component: "apiserver",
				At:        at(500),
				Took:      us(900),
				Subject:   image,
				Detail: &event.Request{
					Verb:     http.MethodPost,
					Resource: "pods",
					User:     "system:node:node-1",
					Code:     201,
					Revision: 40,
					MirrorOf: "file-1",
					OwnerUID: "node-uid",
				},
			},
			storytest.Delivered(1300, 40, image, "ADDED", 40, "system:node:node-1", "pods, spec.nodeName=node-1"),
			node(event.StepContainerStarted, 2000, 9000, &event.Container{Name: "etcd"}),
			node(event.StepReady, 12000, 400, &event.Status{From: "Pending", To: "Running", Ready: true}),
		}, static, 120},
		"steps-pending": {append(watched()[:4:4], watched()[17:20]...), pod, 120},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := listening(c.marks).Story(c.pod.Namespace, c.pod.Name)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			RenderSteps(&b, &s, false, c.width)
			golden(t, name, b.Bytes())
		})
	}
}

func TestRenderWatched(t *testing.T) {
	s, err := listening(watched()).Story("default", podName)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	Render(&b, &s, false, 140)
	golden(t, "journey-watched", b.Bytes())
}

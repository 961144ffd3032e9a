// SPDX-License-Identifier: Apache-2.0

// Package storytest has marks of pods for the tests of timeline.
package storytest

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/event"
)

// T0 is when the stories begin.
var T0 = time.Date(2026, 7, 1, 14, 40, 10, 214e6, time.UTC)

// At is a time that many microseconds after T0.
func At(us int) time.Time { return T0.Add(time.Duration(us) * time.Microsecond) }

// US is a number of microseconds.
func US(n int) time.Duration { return time.Duration(n) * time.Microsecond }

// PodName is the name of Pod.
const PodName = "my-replicaset-qswlg"

// Set is a ReplicaSet, Pod its pod.
var (
	Set = event.Subject{
		Resource:  "replicasets",
		Namespace: "default",
		Name:      "my-replicaset",
		UID:       "rs-1",
	}
	Pod = event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      PodName,
		UID:       "pod-1",
	}
)

// Journey is a pod made by a ReplicaSet, from the request to Ready.
func Journey() []event.Event {
	api := func(from, took int, s event.Subject, r *event.Request) event.Event {
		return event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        At(from),
			Took:      US(took),
			Subject:   s,
			Detail:    r,
		}
	}
	kubelet := func(step event.Step, from, took int, d any) event.Event {
		return event.Event{
			Step:      step,
			Component: "kubelet",
			At:        At(from),
			Took:      US(took),
			Subject:   Pod,
			Detail:    d,
		}
	}
	return []event.Event{
		api(0, 900, Set, &event.Request{
			Verb:      "POST",
			Group:     "apps",
			Resource:  "replicasets",
			User:      "admin",
			UserAgent: "kubectl/v1.37.2 (linux/amd64) keelson",
			AuditID:   "d7974927-1111-2222",
			Code:      201,
			Revision:  512,
			Key:       "/registry/replicasets/default/my-replicaset",
			AuthnHow:  "client certificate",
			Groups:    []string{"system:masters"},
			AuthzWhy:  "ClusterRoleBinding cluster-admin",
			AdmissionChanged: []event.Change{
				{
					By:    "ServiceAccount",
					Field: "spec.serviceAccountName",
				}, {By: "DefaultTolerationSeconds", Field: "spec.tolerations"}, {
					By:    "ServiceAccount",
					Field: "spec.volumes",
				},
			},
			AdmissionAccepted: 7,
			Authn:             US(41),
			Authz:             US(9),
			Decode:            US(12),
			Admission:         US(55),
			Default:           US(14),
			Validate:          US(24),
			Store:             US(700),
			Sync:              US(600),
		}),
		{
			Step:      event.StepReconcile,
			Component: "controllers",
			At:        At(1100),
			Took:      US(1900),
			Subject:   Set,
			Detail: &event.Reconcile{
				Controller: "replicaset",
				EventSeen:  At(1000),
				Wants:      2,
				Creates:    []string{PodName, "my-replicaset-ts2mx"},
			},
		},
		api(1200, 900, Pod, &event.Request{
			Verb:     "POST",
			Resource: "pods",
			User:     "system:serviceaccount:kube-system:replicaset-controller",
			Code:     201,
			Revision: 513,
			OwnerUID: "rs-1",
		}),
		{
			Step:      event.StepQueued,
			Component: "scheduler",
			At:        At(2200),
			Subject:   Pod,
			Detail:    &event.Queued{Why: "PodAdd"},
		},
		{
			Step:      event.StepDecision,
			Component: "scheduler",
			At:        At(2300),
			Took:      US(90),
			Subject:   Pod,
			Detail: &decisions.Attempt{
				PodDecisionStatus: decisions.PodDecisionStatus{
					Attempt:  1,
					Queued:   metav1.Duration{Duration: US(100)},
					Nodes:    3,
					Feasible: 2,
					Node:     "node-1",
					Refusals: []decisions.Refusal{{
						Node:     "node-3",
						Plugin:   "TaintToleration",
						Reason:   "node(s) had untolerated taint(s)",
						Shortage: "taint gpu=true:NoSchedule not tolerated",
						Taint:    &decisions.Taint{Key: "gpu", Value: "true", Effect: "NoSchedule"},
					}},
					Scores: []decisions.NodeScore{
						{
							Node:  "node-1",
							Total: 312,
							Plugins: []decisions.PluginScore{
								decisions.NewPluginScore("TaintToleration", 0, 100, 3),
								decisions.NewPluginScore("NodeResourcesFit", 0, 12, 1),
							},
						},
						{
							Node:  "node-2",
							Total: 287,
							Plugins: []decisions.PluginScore{
								decisions.NewPluginScore("TaintToleration", 0, 92, 3),
								decisions.NewPluginScore("NodeResourcesFit", 0, 11, 1),
							},
						},
					},
					ExtensionPoints: []decisions.ExtensionPoint{
						{Name: decisions.Filter, Took: metav1.Duration{Duration: US(20)}},
						{Name: decisions.Score, Took: metav1.Duration{Duration: US(30)}},
					},
				},
				Reasons: map[string]int{"node(s) had untolerated taint(s)": 1},
			},
		},
		{
			Step:      event.StepBind,
			Component: "scheduler",
			At:        At(2390),
			Took:      US(820),
			Subject:   Pod,
			Detail:    &event.Bind{Node: "node-1"},
		},
		api(2400, 800, Pod, &event.Request{
			Verb:        "POST",
			Resource:    "pods",
			Subresource: "binding",
			User:        "system:kube-scheduler",
			Code:        201,
			Revision:    515,
		}),
		kubelet(event.StepSeen, 3300, 0, &event.Seen{Source: "api"}),
		kubelet(event.StepVolumes, 3400, 400, &event.Volumes{Count: 1}),
		kubelet(event.StepNetwork, 4000, 2100, &event.Network{
			IPs: []string{"10.42.0.7"},
			CNI: "podnet",
			Plugins: []event.Plugin{
				{Name: "bridge", Command: "ADD", Took: US(1400)},
				{Name: "portmap", Command: "ADD", Took: US(600)},
			},
		}),
		kubelet(event.StepImage, 6200, 0, &event.Image{
			Container: "my-container",
			Image:     "keelson.local/hello",
			Present:   true,
		}),
		kubelet(event.StepContainerCreated, 6300, 9000, &event.Container{Name: "my-container"}),
		kubelet(event.StepContainerStarted, 15300, 21000, &event.Container{Name: "my-container"}),
		kubelet(event.StepStatus, 41900, 1000, &event.Status{From: "Pending", To: "Running"}),
		api(42000, 900, Pod, &event.Request{
			Verb:        "PATCH",
			Resource:    "pods",
			Subresource: "status",
			User:        "system:node:node-1",
			Code:        200,
			Revision:    519,
			Status:      &event.StatusChange{From: "Pending", To: "Running"},
		}),
		kubelet(event.StepProbe, 46900, 700, &event.Probe{
			Container: "my-container",
			Kind:      "readiness",
			Action:    "http :80/",
			Success:   true,
			Output:    "200",
		}),
		kubelet(event.StepReady, 47600, 500, &event.Status{From: "Running", To: "Running", Ready: true}),
	}
}

// Attempted is the mark of an attempt for pod number i, about n nodes that fit and n that do not.
func Attempted(i, n int) event.Event {
	decision := &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt:  1,
			Nodes:    int32(2 * n),
			Feasible: int32(n),
			Node:     "fit-0",
		},
		Reasons: map[string]int{"Insufficient cpu": n},
	}
	for j := range n {
		decision.Refusals = append(decision.Refusals, decisions.Refusal{
			Node:     fmt.Sprintf("full-%d", j),
			Plugin:   "NodeResourcesFit",
			Reason:   "Insufficient cpu",
			Shortage: fmt.Sprintf("cpu: asks %d, free 0 of 4", i),
		})
		decision.Scores = append(decision.Scores, decisions.NodeScore{
			Node:    fmt.Sprintf("fit-%d", j),
			Plugins: []decisions.PluginScore{decisions.NewPluginScore("ImageLocality", 7, 3, 2)},
		})
	}
	return event.Event{
		Step:      event.StepDecision,
		Component: "scheduler",
		At:        At(i),
		Took:      US(80),
		Detail:    decision,
		Subject: event.Subject{
			Resource:  "pods",
			Namespace: "default",
			Name:      fmt.Sprint("p", i),
			UID:       fmt.Sprint("uid-", i),
		},
	}
}

// Delivered is the mark of a watch event.
func Delivered(from, took int, s event.Subject, kind string, revision int64, to, watches string) event.Event {
	return event.Event{
		Step:      event.StepDelivery,
		Component: "apiserver",
		At:        At(from),
		Took:      US(took),
		Subject:   s,
		Detail: &event.Delivery{
			Event:    kind,
			Revision: revision,
			To:       to,
			Watches:  watches,
		},
	}
}

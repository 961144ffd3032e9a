// SPDX-License-Identifier: Apache-2.0

// Package marks says who may send which marks to the timeline of an API server, and who a question comes from. It
// decides by the user of a request, and keeps no marks: keelson/timeline/ledger does.
package marks

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/access"
	"keelson/apiserver/admission/noderestriction"
	"keelson/apiserver/pipeline"
	"keelson/auth/authz"
	"keelson/event"
	"keelson/timeline/ask"
	"keelson/timeline/ledger"
)

// Sender returns who may send which marks: an agent those of its own steps, a node those of its own pods, and an
// administrator all. steps are those of agents, by the name of the user; accounts are the service accounts of roles
// next to a kubelet.
func Sender(reader *access.Reader, steps map[string][]event.Step, accounts []string) func(*http.Request) ledger.Sender {
	podsOf := func(node string) func() map[string]ledger.Pod {
		return func() map[string]ledger.Pod { return podsByUID(reader.PodsOn(node)) }
	}
	return func(r *http.Request) ledger.Sender {
		u := pipeline.From(r.Context()).User
		sender := ledger.Sender{Name: u.Name}
		if node, ok := authz.NodeName(u); ok {
			sender.Node = node
			sender.Steps = ledger.NodeSteps
			sender.Bound = podsOf(node)
			return sender
		}
		sender.Steps = steps[u.Name]
		if node, ok := noderestriction.RoleNode(u, accounts); ok { // a role on a node: marks of that node's pods
			sender.Node = node
			sender.Bound = podsOf(node)
			if sender.Steps == nil {
				sender.Steps = []event.Step{}
			}
		}
		return sender
	}
}

// Asker is the user of a request: what a question reads, it reads as that user, through the whole pipeline.
func Asker(r *http.Request) ask.Asker {
	rq := pipeline.From(r.Context())
	return ask.Asker{Further: rq.Further(), Owner: rq.User.Owner()}
}

// podsByUID maps UIDs to pods. A mirror pod is also found by the UID of its static pod, which its kubelet uses.
func podsByUID(pods []*corev1.Pod) map[string]ledger.Pod {
	out := make(map[string]ledger.Pod, len(pods))
	for _, p := range pods {
		name := ledger.Pod{Namespace: p.Namespace, Name: p.Name}
		out[string(p.UID)] = name
		if static := p.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
			if _, taken := out[static]; !taken {
				out[static] = name
			}
		}
	}
	return out
}

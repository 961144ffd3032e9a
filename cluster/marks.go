// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver"
	"keelson/apiserver/admission"
	"keelson/apiserver/pipeline"
	"keelson/auth/authz"
	"keelson/lib/mark"
	"keelson/timeline"
)

// markSender says who sends marks: each agent tells of its own steps, and a node of its own pods. Whoever else may send some, an
// administrator, may tell everything.
func markSender(reader func() *apiserver.Reader) func(*http.Request) timeline.Sender {
	steps := map[string][]mark.Step{}
	for _, r := range table() {
		if len(r.steps) > 0 {
			steps[r.user(Config{}).Name] = r.steps
		}
		if len(r.steps) > 0 && r.account != "" {
			steps[accountUser(r.account)] = r.steps
		}
	}
	accounts := nodeAccountNames(table())
	return func(r *http.Request) timeline.Sender {
		u := pipeline.From(r.Context()).User
		s := timeline.Sender{Name: u.Name}
		if node, ok := authz.NodeName(u); ok {
			s.Node, s.Steps = node, timeline.NodeSteps
			s.Bound = func() map[string]timeline.Pod { return podsByUID(reader().PodsOn(node)) }
			return s
		}
		s.Steps = steps[u.Name]
		if node, ok := admission.RoleNode(u, accounts); ok { // a role beside a kubelet: of that node's pods
			s.Node, s.Bound = node, func() map[string]timeline.Pod { return podsByUID(reader().PodsOn(node)) }
			if s.Steps == nil {
				s.Steps = []mark.Step{}
			}
		}
		return s
	}
}

// podsByUID names pods by their UID; a mirror pod by that of its static pod too, by which its kubelet knows it.
func podsByUID(pods []*corev1.Pod) map[string]timeline.Pod {
	out := make(map[string]timeline.Pod, len(pods))
	for _, p := range pods {
		name := timeline.Pod{Namespace: p.Namespace, Name: p.Name}
		out[string(p.UID)] = name
		if static := p.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
			if _, taken := out[static]; !taken {
				out[static] = name
			}
		}
	}
	return out
}

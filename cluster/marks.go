// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/access"
	"keelson/apiserver/admission/noderestriction"
	"keelson/apiserver/pipeline"
	"keelson/auth"
	"keelson/auth/authz"
	"keelson/cluster/simulation"
	"keelson/event"
	"keelson/timeline/ask"
	"keelson/timeline/ledger"
)

// markSender returns who may send which marks: an agent those of its own steps, a node those of its own pods, and an
// administrator all.
func markSender(reader *access.Reader) func(*http.Request) ledger.Sender {
	steps := map[string][]event.Step{}
	for _, r := range table() {
		if len(r.steps) > 0 {
			steps[r.user(Config{}).Name] = r.steps
		}
		if len(r.steps) > 0 && r.account != "" {
			steps[accountUser(r.account)] = r.steps
		}
	}
	accounts := nodeAccountNames(table())
	return func(r *http.Request) ledger.Sender {
		u := pipeline.From(r.Context()).User
		sender := ledger.Sender{Name: u.Name}
		if node, ok := authz.NodeName(u); ok {
			sender.Node = node
			sender.Steps = ledger.NodeSteps
			sender.Bound = func() map[string]ledger.Pod { return podsByUID(reader.PodsOn(node)) }
			return sender
		}
		sender.Steps = steps[u.Name]
		if node, ok := noderestriction.RoleNode(u, accounts); ok { // a role on a node: marks of that node's pods
			sender.Node = node
			sender.Bound = func() map[string]ledger.Pod { return podsByUID(reader.PodsOn(node)) }
			if sender.Steps == nil {
				sender.Steps = []event.Step{}
			}
		}
		return sender
	}
}

// asker is the user of a request: what a question reads, it reads as that user, through the whole pipeline.
func asker(r *http.Request) ask.Asker {
	rq := pipeline.From(r.Context())
	return ask.Asker{Further: rq.Further(), Owner: rq.User.Owner()}
}

// askName is the name of the role by which every authenticated user may ask. An answer has nothing that the user may
// not read.
const askName = "keelson:ask"

func askRole() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: askName},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, NonResourceURLs: []string{"/keelson/v1/ask/why/*"}},
			{Verbs: []string{"post"}, NonResourceURLs: []string{"/keelson/v1/ask/trace/*", simulation.Path}},
		},
	}
}

func askBinding() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: askName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: askName},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Authenticated}},
	}
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

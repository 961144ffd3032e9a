// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"context"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/proxy/policy"
)

// PolicyRules are the RBAC rules of the role: it reads what policies refer to, which is pods of any node, by labels.
func PolicyRules() []rbacv1.PolicyRule {
	read := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups: []string{group},
			Resources: resources,
			Verbs:     []string{"get", "list", "watch"},
		}
	}
	return []rbacv1.PolicyRule{
		read("networking.k8s.io", "networkpolicies"), read("", "namespaces", "pods"),
		{NonResourceURLs: []string{"/keelson/v1/marks"}, Verbs: []string{"post"}},
	}
}

// NetworkPolicy returns the part that enforces NetworkPolicies.
func (n *Node) NetworkPolicy() (run.Func, error) { return n.policies.Run, nil }

func (n *Node) newPolicies() *policy.Agent {
	return policy.New(policy.Config{
		Client: n.Client(PolicyName),
		Node:   n.NodeName,
		Table:  nodehost.PolicyTable(n.Dir),
		Marks:  n.Marks,
		Log:    n.logOf(eventlog.NetworkPolicy),
	})
}

// PurgePolicies removes the nftables rules.
func PurgePolicies(_ context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil // there are none
	}
	return policy.Purge(nodehost.PolicyTable(dir))
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net/netip"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/proxy/policy"
)

// networkPolicyRole enforces NetworkPolicies on this node.
const networkPolicyRole = "networkpolicy"

// networkPolicyIdentity has the right to read what policies refer to: pods of any node, by their labels.
func networkPolicyIdentity() roleIdentity {
	read := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups: []string{group},
			Resources: resources,
			Verbs:     []string{"get", "list", "watch"},
		}
	}
	return roleIdentity{
		user:    account("keelson-networkpolicy"),
		agent:   "keelson-networkpolicy",
		file:    "networkpolicy",
		account: "keelson-networkpolicy",
		rules: []rbacv1.PolicyRule{
			read("networking.k8s.io", "networkpolicies"), read("", "namespaces", "pods"),
			{NonResourceURLs: []string{"/keelson/v1/marks"}, Verbs: []string{"post"}},
		},
		steps: []event.Step{event.StepPolicy},
	}
}

func (s *site) networkPolicy() (run.Func, error) { return s.policies().Run, nil }

// policies creates the agent once. The container runtime calls it for each new pod.
func (s *site) policies() *policy.Agent {
	if s.node.policies == nil {
		s.node.policies = policy.New(policy.Config{
			Client: s.client(networkPolicyIdentity()),
			Node:   s.cfg.NodeName,
			Table:  nodehost.PolicyTable(s.dir),
			Marks:  s.marks,
			Log:    s.logOf(eventlog.NetworkPolicy),
		})
	}
	return s.node.policies
}

// connected returns the function that passes a new pod's addresses to the policy agent; nil: this process enforces no
// policies.
func (s *site) connected() nodehost.PodConnected {
	for _, r := range table() {
		if r.name == networkPolicyRole && r.on(s.cfg) {
			a := s.policies()
			return func(ctx context.Context, pod *runtimeapi.PodSandboxConfig, addrs []netip.Addr) error {
				return a.Connected(ctx, pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName(), pod.GetLabels(),
					addrs)
			}
		}
	}
	if err := purgePolicies(context.Background(), s.dir); err != nil { // of an earlier run that enforced them
		s.logOf(eventlog.NetworkPolicy).Error("remove the rules of network policies", "err", err)
	}
	return nil
}

// purgePolicies removes the nftables rules.
func purgePolicies(_ context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil // there are none
	}
	return policy.Purge(nodehost.PolicyTable(dir))
}

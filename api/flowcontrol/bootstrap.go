// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"strings"

	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MandatoryPriorityLevels are the two levels that cannot do without: for requests that must never wait, and for those
// that match nothing else. The objects are fresh at each call.
func MandatoryPriorityLevels() []*flowv1.PriorityLevelConfiguration {
	zero := func() *int32 { return new(int32) }
	return []*flowv1.PriorityLevelConfiguration{
		{
			ObjectMeta: fixed(flowv1.PriorityLevelConfigurationNameExempt),
			Spec: flowv1.PriorityLevelConfigurationSpec{
				Type: flowv1.PriorityLevelEnablementExempt,
				Exempt: &flowv1.ExemptPriorityLevelConfiguration{
					NominalConcurrencyShares: zero(),
					LendablePercent:          zero(),
				},
			},
		},
		limited(flowv1.PriorityLevelConfigurationNameCatchAll, 5, 0, flowv1.LimitResponse{
			Type: flowv1.LimitResponseTypeReject,
		}),
	}
}

// suggestedPriorityLevels are the further levels a cluster starts with; its administrator may change them.
func suggestedPriorityLevels() []*flowv1.PriorityLevelConfiguration {
	return []*flowv1.PriorityLevelConfiguration{
		limited("system", 30, 33, queue(64, 6)),
		limited("node-high", 40, 25, queue(64, 6)),
		limited("leader-election", 10, 0, queue(16, 4)),
		limited("workload-high", 40, 50, queue(128, 6)),
		limited("workload-low", 100, 90, queue(128, 6)),
		limited("global-default", 20, 50, queue(128, 6)),
	}
}

// MandatoryFlowSchemas lead to the mandatory levels. The objects are fresh at each call.
func MandatoryFlowSchemas() []*flowv1.FlowSchema {
	return []*flowv1.FlowSchema{
		schema(flowv1.FlowSchemaNameExempt, flowv1.PriorityLevelConfigurationNameExempt, 1, "",
			everything(groups("system:masters"))),
		schema(flowv1.FlowSchemaNameCatchAll, flowv1.PriorityLevelConfigurationNameCatchAll, 10000,
			flowv1.FlowDistinguisherMethodByUserType, everything(everybody())),
	}
}

// suggestedFlowSchemas are in the order in which they are tried.
func suggestedFlowSchemas() []*flowv1.FlowSchema {
	const byUser, byNamespace = flowv1.FlowDistinguisherMethodByUserType, flowv1.FlowDistinguisherMethodByNamespaceType
	return []*flowv1.FlowSchema{
		schema("probes", "exempt", 2, "", flowv1.PolicyRulesWithSubjects{
			Subjects: everybody(),
			NonResourceRules: []flowv1.NonResourcePolicyRule{
				{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz", "/readyz", "/livez"}},
			},
		}),
		schema("system-leader-election", "leader-election", 100, byUser, flowv1.PolicyRulesWithSubjects{
			Subjects: append(users("system:kube-controller-manager", "system:kube-scheduler"),
				systemAccounts()...),
			ResourceRules: []flowv1.ResourcePolicyRule{
				resources("get create update", "coordination.k8s.io", "leases", false),
			},
		}),
		schema("system-node-high", "node-high", 400, byUser, flowv1.PolicyRulesWithSubjects{
			Subjects: groups("system:nodes"),
			ResourceRules: []flowv1.ResourcePolicyRule{
				resources("*", "", "nodes nodes/status", true), resources("*", "coordination.k8s.io", "leases", false),
			},
		}),
		schema("system-nodes", "system", 500, byUser, everything(groups("system:nodes"))),
		schema("kube-controller-manager", "workload-high", 800, byNamespace,
			everything(users("system:kube-controller-manager"))),
		schema("kube-scheduler", "workload-high", 800, byNamespace, everything(users("system:kube-scheduler"))),
		schema("kube-system-service-accounts", "workload-high", 900, byNamespace, everything(systemAccounts())),
		schema("service-accounts", "workload-low", 9000, byUser, everything(groups("system:serviceaccounts"))),
		schema("global-default", "global-default", 9900, byUser, everything(everybody())),
	}
}

// Bootstrap are the objects with which a cluster starts, mandatory ones first, levels before the schemas that name
// them. Those whose annotation flowv1.AutoUpdateAnnotationKey is "true" follow the program's version.
func Bootstrap() []runtime.Object {
	var out []runtime.Object
	for _, p := range append(MandatoryPriorityLevels(), suggestedPriorityLevels()...) {
		out = append(out, p)
	}
	for _, s := range append(MandatoryFlowSchemas(), suggestedFlowSchemas()...) {
		out = append(out, s)
	}
	return out
}

func fixed(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{flowv1.AutoUpdateAnnotationKey: "true"}}
}

func limited(name string, shares, lendable int32, response flowv1.LimitResponse) *flowv1.PriorityLevelConfiguration {
	return &flowv1.PriorityLevelConfiguration{
		ObjectMeta: fixed(name),
		Spec: flowv1.PriorityLevelConfigurationSpec{
			Type: flowv1.PriorityLevelEnablementLimited,
			Limited: &flowv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &shares,
				LendablePercent:          &lendable,
				LimitResponse:            response,
			},
		},
	}
}

func queue(queues, hand int32) flowv1.LimitResponse {
	return flowv1.LimitResponse{
		Type:    flowv1.LimitResponseTypeQueue,
		Queuing: &flowv1.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: defaultLength},
	}
}

func schema(
	name, level string, precedence int32, method flowv1.FlowDistinguisherMethodType,
	rules flowv1.PolicyRulesWithSubjects,
) *flowv1.FlowSchema {
	flowSchema := &flowv1.FlowSchema{
		ObjectMeta: fixed(name),
		Spec: flowv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowv1.PriorityLevelConfigurationReference{Name: level},
			MatchingPrecedence:         precedence,
			Rules:                      []flowv1.PolicyRulesWithSubjects{rules},
		},
	}
	if method != "" {
		flowSchema.Spec.DistinguisherMethod = &flowv1.FlowDistinguisherMethod{Type: method}
	}
	return flowSchema
}

func resources(verbs, group, names string, cluster bool) flowv1.ResourcePolicyRule {
	return flowv1.ResourcePolicyRule{
		Verbs:        strings.Fields(verbs),
		APIGroups:    []string{group},
		Resources:    strings.Fields(names),
		Namespaces:   []string{flowv1.NamespaceEvery},
		ClusterScope: cluster,
	}
}

func everything(who []flowv1.Subject) flowv1.PolicyRulesWithSubjects {
	return flowv1.PolicyRulesWithSubjects{
		Subjects: who,
		ResourceRules: []flowv1.ResourcePolicyRule{
			resources(flowv1.VerbAll, flowv1.APIGroupAll, flowv1.ResourceAll, true),
		},
		NonResourceRules: []flowv1.NonResourcePolicyRule{
			{Verbs: []string{flowv1.VerbAll}, NonResourceURLs: []string{flowv1.NonResourceAll}},
		},
	}
}

func groups(names ...string) []flowv1.Subject {
	var out []flowv1.Subject
	for _, n := range names {
		out = append(out, flowv1.Subject{Kind: flowv1.SubjectKindGroup, Group: &flowv1.GroupSubject{Name: n}})
	}
	return out
}

func users(names ...string) []flowv1.Subject {
	var out []flowv1.Subject
	for _, n := range names {
		out = append(out, flowv1.Subject{Kind: flowv1.SubjectKindUser, User: &flowv1.UserSubject{Name: n}})
	}
	return out
}

func everybody() []flowv1.Subject { return groups("system:unauthenticated", "system:authenticated") }

func systemAccounts() []flowv1.Subject {
	return []flowv1.Subject{{
		Kind:           flowv1.SubjectKindServiceAccount,
		ServiceAccount: &flowv1.ServiceAccountSubject{Namespace: metav1.NamespaceSystem, Name: flowv1.NameAll},
	}}
}

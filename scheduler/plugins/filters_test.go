// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/schedtest"
)

var (
	app    = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	zoneA  = schedtest.Zone("a")
	inZone = corev1.PodAffinityTerm{LabelSelector: app, TopologyKey: corev1.LabelTopologyZone}
	onHost = corev1.PodAffinityTerm{LabelSelector: app, TopologyKey: corev1.LabelHostname}
	isApp  = schedtest.Labelled("app", "a")
)

func requiredAffinity(t ...corev1.PodAffinityTerm) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: t},
		}
	})
}

func requiredAntiAffinity(t ...corev1.PodAffinityTerm) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: t},
		}
	})
}

func selector(kv ...string) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.NodeSelector = map[string]string{}
		for i := 0; i+1 < len(kv); i += 2 {
			s.NodeSelector[kv[i]] = kv[i+1]
		}
	})
}

func requires(terms ...corev1.NodeSelectorTerm) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	})
}

func named(names ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: names},
	}}
}

func spreads(c corev1.TopologySpreadConstraint) schedtest.PodOption {
	if c.WhenUnsatisfiable == "" {
		c.WhenUnsatisfiable = corev1.DoNotSchedule
	}
	if c.LabelSelector == nil {
		c.LabelSelector = app
	}
	return schedtest.With(func(s *corev1.PodSpec) {
		s.TopologySpreadConstraints = append(s.TopologySpreadConstraints, c)
	})
}

func scalar(name, n string) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Requests = s.Containers[0].Resources.Requests.DeepCopy()
		s.Containers[0].Resources.Requests[corev1.ResourceName(name)] = schedtest.Quantity(n)
	})
}

func disk(v corev1.VolumeSource) schedtest.PodOption {
	return schedtest.With(func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "d", VolumeSource: v})
	})
}

// twice adds a second container like the first.
func twice(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) }

func node(name string, o ...schedtest.NodeOption) *corev1.Node { return schedtest.Node(name, o...) }
func pod(o ...schedtest.PodOption) *corev1.Pod                 { return schedtest.Pod("new", o...) }
func there(name, on string, o ...schedtest.PodOption) *corev1.Pod {
	return schedtest.Pod(name, append(o, schedtest.On(on))...)
}
func two(a, b []schedtest.NodeOption) []any { return []any{node("n1", a...), node("n2", b...)} }
func labels(kv ...string) []schedtest.NodeOption {
	return []schedtest.NodeOption{schedtest.Labels(kv...)}
}
func with(objs []any, more ...any) []any { return append(append([]any{}, objs...), more...) }
func gce(name string, ro bool) corev1.VolumeSource {
	return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: ro}}
}

// TestFilters gives a cluster and a pod, and wants the nodes that fit and the reasons of the others.
func TestFilters(t *testing.T) {
	one := []any{node("n1")}
	zones := two([]schedtest.NodeOption{zoneA}, []schedtest.NodeOption{schedtest.Zone("b")})
	tests := []struct {
		name    string
		cluster []any
		pod     *corev1.Pod
		fit     string // "n1 n2"
		why     string // "1 reason, 2 reason"
	}{
		{"plain", one, pod(), "n1", ""},
		{"named node", two(nil, nil), pod(schedtest.On("n2")), "n2", "1 node(s) didn't match the requested node name"},
		{"cordoned", with(one, node("n2", schedtest.Cordoned())), pod(), "n1", "1 node(s) were unschedulable"},
		{
			"cordoned, tolerated",
			[]any{node("n1", schedtest.Cordoned())},
			pod(schedtest.Tolerates(corev1.Toleration{
				Key:      corev1.TaintNodeUnschedulable,
				Operator: corev1.TolerationOpExists,
			})), "n1", "",
		},
		{
			"a feature that one node declares",
			with(one, node("n2", func(n *corev1.Node) {
				n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"}
			})),
			pod(restartsAll), "n2", "1 node(s) didn't match Pod's required features",
		},
		{
			"tainted",
			[]any{node("n1", schedtest.Taint("k", "v", corev1.TaintEffectNoSchedule))},
			pod(), "",
			"1 node(s) had untolerated taint(s)",
		},
		{
			"tainted, no execute",
			[]any{node("n1", schedtest.Taint("k", "v", corev1.TaintEffectNoExecute))},
			pod(),
			"", "1 node(s) had untolerated taint(s)",
		},
		{
			"softly tainted",
			[]any{node("n1", schedtest.Taint("k", "v", corev1.TaintEffectPreferNoSchedule))},
			pod(),
			"n1", "",
		},
		{
			"tolerated by value", two([]schedtest.NodeOption{schedtest.Taint("k", "v", corev1.TaintEffectNoSchedule)},
				[]schedtest.NodeOption{schedtest.Taint("k", "w", corev1.TaintEffectNoSchedule)}),
			pod(schedtest.Tolerates(corev1.Toleration{Key: "k", Value: "v"})), "n1",
			"1 node(s) had untolerated taint(s)",
		},
		{"more cpu than can be counted", one, pod(schedtest.Requests("1E", "")), "", "1 Insufficient cpu"},
		{
			"more memory than can be counted", one, pod(schedtest.Requests("", "8Ei"), twice), "",
			"1 Insufficient memory",
		},
		{
			"more devices than can be counted", one, pod(scalar("example.com/gpu", "9E"), twice), "",
			"1 Insufficient example.com/gpu",
		},
		{
			"impossible pods on the node", with(one, there("p", "n1", schedtest.Requests("9E", "8Ei"), twice),
				there("q", "n1", schedtest.Requests("9E", "8Ei"), twice)), pod(), "",
			"1 Insufficient cpu, 1 Insufficient memory",
		},
		{
			"a node that offers the impossible", []any{node("n1", schedtest.Allocatable(corev1.ResourceCPU, "9E"),
				schedtest.Allocatable(corev1.ResourceMemory, "8Ei"))}, pod(), "n1", "",
		},
		{
			"the impossible on a node that offers it",
			[]any{node("n1", schedtest.Allocatable(corev1.ResourceCPU, "9E"))},
			pod(schedtest.Requests("9E", "")), "",
			"1 Insufficient cpu",
		},
		{
			"less than nothing", with(one, there("p", "n1", schedtest.Requests("-1E", "")),
				there("q", "n1", schedtest.Requests("4", ""))), pod(), "", "1 Insufficient cpu",
		},
		{"too much cpu", one, pod(schedtest.Requests("5", "1Gi")), "", "1 Insufficient cpu"},
		{
			"too much of both", one, pod(schedtest.Requests("5", "64Gi")), "",
			"1 Insufficient cpu, 1 Insufficient memory",
		},
		{
			"taken", with(one, there("p", "n1", schedtest.Requests("3500m", ""))), pod(schedtest.Requests("600m", "")),
			"", "1 Insufficient cpu",
		},
		{
			"exactly what is left", with(one, there("p", "n1", schedtest.Requests("3500m", ""))),
			pod(schedtest.Requests("500m", "")), "n1", "",
		},
		{
			"asks for nothing on a full node", with(one, there("p", "n1", schedtest.Requests("4", "32Gi"))),
			pod(schedtest.Requests("", "")), "n1", "",
		},
		{
			"too many pods",
			[]any{node("n1", schedtest.Allocatable(corev1.ResourcePods, "1")), there("p", "n1")},
			pod(), "", "1 Too many pods",
		},
		{
			"extended resource",
			[]any{node("n1"), node("n2", schedtest.Allocatable("x.io/gpu", "2"))},
			pod(scalar("x.io/gpu", "2")), "n2", "1 Insufficient x.io/gpu",
		},
		{
			"extended resource taken",
			[]any{node("n1", schedtest.Allocatable("x.io/gpu", "2")), there("p", "n1", scalar("x.io/gpu", "1"))},
			pod(scalar("x.io/gpu", "2")), "", "1 Insufficient x.io/gpu",
		},
		{
			"node selector", two(labels("disk", "ssd"), labels("disk", "hdd")), pod(selector("disk", "ssd")), "n1",
			"1 node(s) didn't match Pod's node affinity/selector",
		},
		{
			"node affinity", two(labels("gen", "3"), labels("gen", "5")),
			pod(requires(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "gen", Operator: corev1.NodeSelectorOpGt, Values: []string{"4"}},
			}})),
			"n2", "1 node(s) didn't match Pod's node affinity/selector",
		},
		{
			"node by field", two(nil, nil), pod(requires(named("n2"))), "n2",
			"1 node(s) didn't satisfy plugin(s) [NodeAffinity]",
		},
		{"nodes by several terms", two(nil, nil), pod(requires(named("n2"), named("n1"))), "n1 n2", ""},
		{
			"conflicting fields", one,
			pod(requires(corev1.NodeSelectorTerm{
				MatchFields: append(named("n1").MatchFields, named("n2").MatchFields...),
			})), "", "pod affinity terms conflict",
		},
		{
			"host port", with(two(nil, nil), there("p", "n1", schedtest.HostPort("", corev1.ProtocolTCP, 80))),
			pod(schedtest.HostPort("", corev1.ProtocolTCP, 80)), "n2",
			"1 node(s) didn't have free ports for the requested pod ports",
		},
		{
			"host port of a sidecar", with(two(nil, nil), there("p", "n1", schedtest.HostPort("", corev1.ProtocolTCP, 80))),
			pod(schedtest.HostPort("", corev1.ProtocolTCP, 80), schedtest.With(func(s *corev1.PodSpec) {
				s.InitContainers = s.Containers
				s.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
				s.Containers = []corev1.Container{{Name: "main"}}
			})), "n2", "1 node(s) didn't have free ports for the requested pod ports",
		},
		{
			"host port, other protocol", with(one, there("p", "n1", schedtest.HostPort("", corev1.ProtocolTCP, 80))),
			pod(schedtest.HostPort("", corev1.ProtocolUDP, 80)), "n1", "",
		},
		{
			"host port, other address",
			with(one, there("p", "n1", schedtest.HostPort("10.0.0.1", corev1.ProtocolTCP, 80))),
			pod(schedtest.HostPort("10.0.0.2", corev1.ProtocolTCP, 80)), "n1", "",
		},
		{
			"host port, all addresses",
			with(one, there("p", "n1", schedtest.HostPort("10.0.0.1", corev1.ProtocolTCP, 80))),
			pod(schedtest.HostPort("0.0.0.0", corev1.ProtocolTCP, 80)), "",
			"1 node(s) didn't have free ports for the requested pod ports",
		},
		{
			"disk taken", with(two(nil, nil), there("p", "n1", disk(gce("d", false)))), pod(disk(gce("d", true))),
			"n2", "1 node(s) had no available disk",
		},
		{"disk shared to read", with(one, there("p", "n1", disk(gce("d", true)))), pod(disk(gce("d", true))), "n1", ""},
		{
			"near a pod", with(zones, there("p", "n1", isApp)), pod(requiredAffinity(inZone)), "n1",
			"1 node(s) didn't match pod affinity rules",
		},
		{
			"near a pod of another namespace", with(zones, there("p", "n1", isApp, schedtest.In("other"))),
			pod(requiredAffinity(inZone)), "", "2 node(s) didn't match pod affinity rules",
		},
		{"first of its kind", zones, pod(isApp, requiredAffinity(inZone)), "n1 n2", ""},
		{
			"first, but the key is missing", with(zones, node("n3")), pod(isApp, requiredAffinity(inZone)), "n1 n2",
			"1 node(s) didn't match pod affinity rules",
		},
		{
			"away from a pod", with(zones, there("p", "n1", isApp)), pod(requiredAntiAffinity(inZone)), "n2",
			"1 node(s) didn't match pod anti-affinity rules",
		},
		{
			"kept away by a pod", with(zones, there("p", "n1", requiredAntiAffinity(inZone))), pod(isApp), "n2",
			"1 node(s) didn't satisfy existing pods anti-affinity rules",
		},
		{
			"on another host of the zone",
			[]any{node("n1", zoneA), node("n2", zoneA), there("p", "n1", isApp)},
			pod(requiredAntiAffinity(onHost)), "n2", "1 node(s) didn't match pod anti-affinity rules",
		},
		{
			"by namespace labels", with(zones, ns("red", "team", "x"), ns("blue", "team", "y"),
				there("p", "n1", isApp, schedtest.In("red")), there("q", "n2", isApp, schedtest.In("blue"))),
			pod(requiredAntiAffinity(corev1.PodAffinityTerm{
				LabelSelector:     app,
				TopologyKey:       corev1.LabelHostname,
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}},
			})),
			"n2", "1 node(s) didn't match pod anti-affinity rules",
		},
		{
			"all affinity terms by one pod",
			with(zones, there("p", "n1", isApp), there("q", "n2", isApp, schedtest.Labelled("tier", "db"))),
			pod(requiredAffinity(inZone, corev1.PodAffinityTerm{
				LabelSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"tier": "db"},
				},
				TopologyKey: corev1.LabelTopologyZone,
			})),
			"n2", "1 node(s) didn't match pod affinity rules",
		},
		{
			"spread", with(zones, there("p", "n1", isApp)),
			pod(isApp, spreads(corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone})),
			"n2", "1 node(s) didn't match pod topology spread constraints",
		},
		{
			"spread, skew allowed", with(zones, there("p", "n1", isApp)),
			pod(isApp, spreads(corev1.TopologySpreadConstraint{MaxSkew: 2, TopologyKey: corev1.LabelTopologyZone})),
			"n1 n2", "",
		},
		{
			"spread, an empty selector counts all, those without labels too",
			with(zones, there("p", "n1"), there("q", "n2", schedtest.In("other"))),
			pod(spreads(corev1.TopologySpreadConstraint{
				MaxSkew:       1,
				TopologyKey:   corev1.LabelTopologyZone,
				LabelSelector: &metav1.LabelSelector{},
			})), "n2", "1 node(s) didn't match pod topology spread constraints",
		},
		{
			"spread, key missing", with(zones, node("n3")),
			pod(isApp, spreads(corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone})),
			"n1 n2", "1 node(s) didn't match pod topology spread constraints (missing required label)",
		},
		{
			"spread, nodes outside the selector do not count",
			[]any{
				node("n1", zoneA, schedtest.Labels("ok", "1")), node("n2", schedtest.Zone("b")),
				there("p", "n1", isApp),
			},
			pod(isApp, selector("ok", "1"),
				spreads(corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone})), "n1",
			"1 node(s) didn't match Pod's node affinity/selector",
		},
		{
			"spread, pods on nodes that are not tolerated do not count",
			[]any{
				node("n1", zoneA), node("n2", schedtest.Zone("b")),
				node("n3", zoneA, schedtest.Taint("k", "v", corev1.TaintEffectNoSchedule)), there("p", "n3", isApp),
				there("q", "n3", isApp),
			},
			pod(isApp,
				spreads(corev1.TopologySpreadConstraint{
					MaxSkew:          1,
					TopologyKey:      corev1.LabelTopologyZone,
					NodeTaintsPolicy: new(corev1.NodeInclusionPolicyHonor),
				})), "n1 n2", "1 node(s) had untolerated taint(s)",
		},
		{
			"spread, too few domains", zonesOf("a", "b"),
			pod(isApp, spreads(corev1.TopologySpreadConstraint{
				MaxSkew:     1,
				TopologyKey: corev1.LabelTopologyZone,
				MinDomains:  new(int32(3)),
			})), "n1 n2", "",
		},
		{
			"spread, too few domains and one pod in each",
			with(zonesOf("a", "b"), there("p", "n1", isApp), there("q", "n2", isApp)),
			pod(isApp,
				spreads(corev1.TopologySpreadConstraint{
					MaxSkew:     1,
					TopologyKey: corev1.LabelTopologyZone,
					MinDomains:  new(int32(3)),
				})), "", "2 node(s) didn't match pod topology spread constraints",
		},
		{
			"spread, pods being deleted do not count", with(zones, deleted(there("p", "n1", isApp))),
			pod(isApp, spreads(corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone})),
			"n1 n2", "",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			h := schedtest.New(1, 1)
			h.Add(tc.cluster...)
			attempt := h.Try(tc.pod)
			var fit []string
			for _, n := range h.Cache.Refresh().Nodes {
				for _, f := range attempt.Feasible {
					if f == n {
						fit = append(fit, n.Name)
					}
				}
			}
			if got := strings.Join(fit, " "); got != tc.fit {
				t.Errorf("fit = %q, want %q (%s)", got, tc.fit, attempt.Message())
			}
			_, why, _ := strings.Cut(strings.TrimSuffix(attempt.Message(), "."), "available: ")
			if why != tc.why && !strings.HasSuffix(attempt.Message(), "available:"+tc.why) {
				t.Errorf("why = %q, want %q", why, tc.why)
			}
		})
	}
}

func ns(name string, kv ...string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := 0; i+1 < len(kv); i += 2 {
		n.Labels[kv[i]] = kv[i+1]
	}
	return n
}

func zonesOf(a, b string) []any {
	return two([]schedtest.NodeOption{schedtest.Zone(a)}, []schedtest.NodeOption{schedtest.Zone(b)})
}

func deleted(p *corev1.Pod) *corev1.Pod {
	p.DeletionTimestamp = new(metav1.Now())
	return p
}

// restartsAll asks for what not every kubelet can do.
func restartsAll(p *corev1.Pod) {
	p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
		{Action: corev1.ContainerRestartRuleActionRestartAllContainers},
	}
}

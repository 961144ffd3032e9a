// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	klabels "k8s.io/apimachinery/pkg/labels"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/config"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/plugins/volumes"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// configured makes the plugin that a file's arguments make.
func configured(t *testing.T, shared *plugins.Shared, name, args string) *framework.Plugin {
	t.Helper()
	configuration, err := config.Read("f",
		[]byte(
			`{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": [{"pluginConfig": [{"name": "`+
				name+`", "args": `+args+`}]}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plugins.Find(name).Make(configuration.Profiles[0].Args[name], &framework.Handle{}, shared)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// kin are the pods with the same label app.
func kin(p *corev1.Pod) klabels.Selector {
	if p.Labels["app"] == "" {
		return nil
	}
	return klabels.SelectorFromSet(klabels.Set{"app": p.Labels["app"]})
}

// TestConfiguredScores: arguments of the file reach the formulas. Nodes have 4 CPUs and 32Gi.
func TestConfiguredScores(t *testing.T) {
	const gpu = "example.com/gpu"
	gpus := []any{node("n1", schedtest.Allocatable(gpu, "4")), node("n2", schedtest.Allocatable(gpu, "8"))}
	zones := zonesOf("a", "b")
	taken := with(zones, there("p", "n1", schedtest.Requests("1", "8Gi")))
	for _, tt := range []struct {
		name, plugin, args string
		cluster            []any
		pod                *corev1.Pod
		want               []int64
	}{
		{
			"most allocated", "NodeResourcesFit", `{"scoringStrategy": {"type": "MostAllocated"}}`, taken,
			pod(schedtest.Requests("1", "8Gi")),
			[]int64{50, 25},
		},
		{
			"weights", "NodeResourcesFit",
			`{"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 3}, {"name": "memory"}]}}`,
			taken, pod(schedtest.Requests("2", "8Gi")),
			[]int64{31, 56},
		},
		{
			"extended", "NodeResourcesFit",
			`{"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "example.com/gpu"}]}}`, gpus,
			pod(scalar(gpu, "2")),
			[]int64{50, 25},
		},
		{
			"extended that is not asked for", "NodeResourcesFit",
			`{"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "example.com/gpu"}, {"name": "cpu"}]}}`,
			gpus, pod(schedtest.Requests("2", "")),
			[]int64{50, 50},
		},
		{
			"by capacity", "NodeResourcesFit",
			`{"scoringStrategy": {"type": "RequestedToCapacityRatio", "resources": [{"name": "cpu"}], "requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}}}`,
			taken, pod(schedtest.Requests("1", "")),
			[]int64{50, 25},
		},
		{
			"by capacity, what scores nothing does not count", "NodeResourcesFit",
			`{"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": [{"utilization": 30, "score": 0}, {"utilization": 100, "score": 10}]}}}`,
			zones, pod(schedtest.Requests("4", "8Gi")),
			[]int64{100, 100},
		},
		{
			"hard affinity counts for nothing", "InterPodAffinity", `{"hardPodAffinityWeight": 0}`,
			with(zones, there("p", "n2", schedtest.Labelled("app", "x"), requiredAffinity(inZone))),
			pod(schedtest.Labelled("app", "x")), nil,
		},
		{
			"others' preferences", "InterPodAffinity", `{"ignorePreferredTermsOfExistingPods": true}`,
			with(zones, there("p", "n2", prefersPods(3, false, inZone))), pod(isApp), nil,
		},
		{
			"added preference", "NodeAffinity",
			`{"addedAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}]}}]}}`,
			zones, pod(),
			[]int64{0, 100},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scorer := configured(t, &plugins.Shared{DefaultSelector: kin}, tt.plugin, tt.args)
			if scorer.PreScore == nil {
				t.Fatal("does not score")
			}
			h := schedtest.New(1, 1)
			h.Add(tt.cluster...)
			s := h.Cache.Refresh()
			var got []int64
			if n := scorer.PreScore(&framework.CycleState{}, state.NewPodInfo(tt.pod), s, s.Nodes); n.Score != nil {
				for _, on := range []string{"n1", "n2"} {
					got = append(got, n.Score(s.Node(on)))
				}
				if n.Normalize != nil {
					n.Normalize(got)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestConfiguredFilters: arguments of the file reach the filters. It wants the nodes that pass.
func TestConfiguredFilters(t *testing.T) {
	zones := zonesOf("a", "b")
	inB := `{"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}]}]}}}`
	spread := `{"defaultingType": "List", "defaultConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}]}`
	mine := schedtest.Labelled("app", "x")
	for _, tt := range []struct {
		name, plugin, args string
		cluster            []any
		pod                *corev1.Pod
		want               []string
	}{
		{"gpus count", "NodeResourcesFit", `{}`, zones, pod(scalar("example.com/gpu", "1")), nil},
		{
			"ignored", "NodeResourcesFit", `{"ignoredResources": ["example.com/gpu"]}`, zones,
			pod(scalar("example.com/gpu", "1")),
			[]string{"n1", "n2"},
		},
		{
			"ignored group", "NodeResourcesFit", `{"ignoredResourceGroups": ["example.com"]}`, zones,
			pod(scalar("example.com/gpu", "1")),
			[]string{"n1", "n2"},
		},
		{
			"another group", "NodeResourcesFit", `{"ignoredResourceGroups": ["example.org"]}`, zones,
			pod(scalar("example.com/gpu", "1")), nil,
		},
		{"added affinity", "NodeAffinity", inB, zones, pod(), []string{"n2"}},
		{"added affinity and its own", "NodeAffinity", inB, zones, pod(selector(corev1.LabelTopologyZone, "a")), nil},
		{
			"added affinity and named nodes", "NodeAffinity", inB, zones, pod(requires(named("n1"), named("n2"))),
			[]string{"n2"},
		},
		{
			"default constraints", "PodTopologySpread", spread, with(zones, there("p", "n1", mine)), pod(mine),
			[]string{"n2"},
		},
		{
			"default constraints, of no owner", "PodTopologySpread", spread, with(zones, there("p", "n1", mine)), pod(),
			[]string{"n1", "n2"},
		},
		{
			"own constraints instead", "PodTopologySpread", spread, with(zones, there("p", "n1", mine)),
			pod(mine, spreads(corev1.TopologySpreadConstraint{
				MaxSkew:           5,
				TopologyKey:       corev1.LabelTopologyZone,
				WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector:     &metav1.LabelSelector{},
			})),
			[]string{"n1", "n2"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := configured(t, &plugins.Shared{DefaultSelector: kin}, tt.plugin, tt.args)
			if p.PreFilter == nil {
				t.Fatal("does not filter")
			}
			h := schedtest.New(1, 1)
			h.Add(tt.cluster...)
			s := h.Cache.Refresh()
			f, st := p.PreFilter(&framework.CycleState{}, state.NewPodInfo(tt.pod), s)
			if st != nil {
				t.Fatal(st)
			}
			var got []string
			for _, on := range []string{"n1", "n2"} {
				if f.Filter == nil || f.Filter(s.Node(on)) == nil {
					got = append(got, on)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestArgsAreOfTheirPlugins: each of Kubernetes' plugins can be made with its default arguments.
func TestArgsAreOfTheirPlugins(t *testing.T) {
	p := config.Default().Profiles[0]
	shared := &plugins.Shared{
		Storage: volumes.NewStorage(nil),
		Preemption: func(*configv1.DefaultPreemptionArgs) *framework.Plugin {
			return &framework.Plugin{Name: "DefaultPreemption"}
		},
		Devices: func(*configv1.DynamicResourcesArgs) *framework.Plugin {
			return &framework.Plugin{Name: "DynamicResources"}
		},
	}
	for i := range plugins.Table {
		row := &plugins.Table[i]
		made, err := row.Make(p.Args[row.Name], &framework.Handle{}, shared)
		if err != nil || made.Name != row.Name {
			t.Errorf("%s: %v, %v", row.Name, made, err)
		}
	}
	if _, err := plugins.Find("NodeResourcesFit").Make(&configv1.NodeAffinityArgs{}, nil, nil); err == nil ||
		err.Error() != "plugin NodeResourcesFit: its arguments are a *v1.NodeAffinityArgs" {
		t.Errorf("arguments of another plugin: %v", err)
	}
}

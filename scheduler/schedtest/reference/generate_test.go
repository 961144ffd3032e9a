// SPDX-License-Identifier: Apache-2.0

package reference_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// step is one change of the cluster. One of the fields is set.
type step struct {
	Node      *corev1.Node      `json:"node,omitempty"` // is added or updated
	NodeGone  string            `json:"nodeGone,omitempty"`
	Namespace *corev1.Namespace `json:"namespace,omitempty"`
	Bound     *corev1.Pod       `json:"bound,omitempty"` // is added with a node, or updated
	Leaving   string            `json:"leaving,omitempty"`
	Resized   string            `json:"resized,omitempty"` // a pod, of which only To changes
	To        *corev1.PodStatus `json:"to,omitempty"`
	Gone      string            `json:"gone,omitempty"`
	Place     *corev1.Pod       `json:"place,omitempty"`
	Storage   *storageStep      `json:"storage,omitempty"`
}

// generator generates random steps. Most pods use one of a few terms, so that counts which are cached for one pod are
// used for the next.
type generator struct {
	*rand.Rand
	terms []corev1.PodAffinityTerm
}

// oneIn returns true with a probability of 1/n.
func (d generator) oneIn(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d generator, of ...T) T { return of[d.IntN(len(of))] }

// pickUpTo returns up to n different elements.
func pickUpTo[T any](d generator, n int, of ...T) []T {
	d.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of[:min(d.IntN(n+1), len(of))]
}

var (
	teams  = []string{"default", "red", "blue"}
	images = map[string]int64{
		"small:1":                       10 << 20,
		"base:latest":                   120 << 20,
		"registry.example:5000/large:2": 700 << 20,
		"huge@sha256:0":                 3 << 30,
	}
)

func generateSteps(seed uint64) []step {
	d := generator{Rand: rand.New(rand.NewPCG(seed, 1))}
	for range 3 {
		d.terms = append(d.terms, d.podTerm())
	}
	var steps []step
	for _, team := range teams {
		steps = append(steps, step{Namespace: d.namespace(team)})
	}
	nodes := 1 + d.IntN(pick(d, 4, 8, 30))
	for i := range nodes {
		steps = append(steps, step{Node: d.node(i)})
	}
	steps = append(steps, d.storage(nodes)...)
	pods := 5 + d.IntN(pick(d, 10, 45))
	var kinds []*corev1.Pod
	anyPod := func() string { return fmt.Sprint("p", d.IntN(pods)) }
	for i := range pods {
		switch d.IntN(20) {
		case 0, 1, 2:
			steps = append(steps, step{Bound: d.bound(i, nodes)})
		case 3:
			steps = append(steps, step{Node: d.node(d.IntN(nodes + 1))})
		case 4:
			steps = append(steps, pick(d, step{Gone: anyPod()}, step{Leaving: anyPod()},
				step{Bound: d.bound(d.IntN(pods), nodes)}))
		case 5:
			steps = append(steps, step{
				Resized: anyPod(),
				To:      d.resized([]corev1.Container{{Name: "c0"}, {Name: "c1"}}),
			})
		case 6:
			steps = append(steps, step{Namespace: d.namespace(pick(d, teams...))})
		case 7:
			steps = append(steps, pick(d, step{Namespace: d.namespace(pick(d, teams...))},
				step{NodeGone: fmt.Sprint("n", d.IntN(nodes))}))
		default:
			pod := d.pod(i)
			if len(kinds) > 0 && !d.oneIn(3) { // another pod of a workload
				like := pick(d, kinds...).DeepCopy()
				like.Name = pod.Name
				like.UID = pod.UID
				pod = like
			} else if d.oneIn(40) {
				pod.Spec.NodeName = fmt.Sprint("n", d.IntN(nodes))
			}
			kinds = append(kinds, pod)
			steps = append(steps, step{Place: pod})
			if d.oneIn(3) {
				steps = append(steps, step{Place: d.variant(pod)})
			}
			if d.oneIn(2) {
				steps = append(steps, d.ofStorage(nodes))
			}
		}
	}
	return steps
}

func (d generator) namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{"kubernetes.io/metadata.name": name, "tier": pick(d, "a", "b")},
	}}
}

func (d generator) node(i int) *corev1.Node {
	name := fmt.Sprint("n", i)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: map[string]string{}},
	}
	if !d.oneIn(12) {
		n.Labels[corev1.LabelHostname] = name
	}
	if !d.oneIn(6) {
		n.Labels[corev1.LabelTopologyZone] = pick(d, "a", "b", "c")
	}
	if !d.oneIn(3) {
		n.Labels["disk"] = pick(d, "ssd", "hdd")
	}
	if !d.oneIn(3) {
		n.Labels["cores"] = pick(d, "2", "4", "16", "many")
	}
	for _, t := range pickUpTo(d, 2, corev1.Taint{Key: "team", Value: "red"},
		corev1.Taint{Key: "level", Value: pick(d, "3", "7")}, corev1.Taint{Key: "spot"}) {
		if d.oneIn(2) {
			t.Effect = pick(d, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
				corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
			n.Spec.Taints = append(n.Spec.Taints, t)
		}
	}
	n.Spec.Unschedulable = d.oneIn(12)
	offers := list("cpu", pick(d, "1", "2", "4", "3500m"), "memory", pick(d, "2Gi", "8Gi", "32Gi"), "pods",
		pick(d, "3", "8", "110", "110"))
	if d.oneIn(3) {
		offers["ephemeral-storage"] = resource.MustParse(pick(d, "5Gi", "20Gi"))
	}
	if d.oneIn(3) {
		offers["example.com/gpu"] = resource.MustParse(pick(d, "0", "1", "4"))
	}
	n.Status.Allocatable = offers
	for name, size := range images {
		if d.oneIn(2) {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
				Names:     []string{name, name + "-too"},
				SizeBytes: size,
			})
		}
	}
	return n
}

func list(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		if kv[i+1] != "" {
			l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
		}
	}
	return l
}

func (d generator) requests() corev1.ResourceList {
	l := list("cpu", pick(d, "", "0", "100m", "300m", "1"), "memory", pick(d, "", "", "128Mi", "1Gi"))
	if d.oneIn(8) {
		l["ephemeral-storage"] = resource.MustParse(pick(d, "0", "1Gi", "4Gi"))
	}
	if d.oneIn(10) {
		l["example.com/gpu"] = resource.MustParse(pick(d, "0", "1", "2"))
	}
	return l
}

func (d generator) container(name string) corev1.Container {
	ctr := corev1.Container{
		Name: name,
		Image: pick(d, "small:1", "base", "registry.example:5000/large:2",
			"huge@sha256:0", "none"),
		Resources: corev1.ResourceRequirements{Requests: d.requests()},
	}
	if d.oneIn(6) {
		ctr.Ports = append(ctr.Ports, corev1.ContainerPort{
			ContainerPort: 80,
			HostPort:      pick[int32](d, 80, 443),
			HostIP:        pick(d, "", "0.0.0.0", "10.0.0.1", "10.0.0.2"),
			Protocol:      pick(d, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, ""),
		})
	}
	return ctr
}

func (d generator) pod(i int) *corev1.Pod {
	name := fmt.Sprint("p", i)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:      name,
		Namespace: pick(d, teams...),
		UID:       types.UID(name),
		Labels:    map[string]string{"app": pick(d, "x", "y")},
	}}
	if d.oneIn(2) {
		p.Labels["rev"] = pick(d, "1", "2")
	}
	spec := &p.Spec
	spec.Priority = new(pick[int32](d, 0, 10))
	for j := range 1 + d.IntN(2) {
		spec.Containers = append(spec.Containers, d.container(fmt.Sprint("c", j)))
	}
	for j := range max(0, d.IntN(7)-4) {
		c := d.container(fmt.Sprint("i", j))
		if d.oneIn(2) {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	if d.oneIn(10) {
		spec.Overhead = list("cpu", "50m", "memory", pick(d, "", "100Mi"))
	}
	if d.oneIn(10) {
		spec.Resources = &corev1.ResourceRequirements{
			Requests: list("cpu", pick(d, "", "2"), "memory", pick(d, "", "2Gi")),
		}
	}
	if d.oneIn(20) {
		spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "base"}}},
		}
	}
	if d.oneIn(4) {
		d.volumes(p)
	}
	for _, toleration := range pickUpTo(d, 3,
		corev1.Toleration{Key: "team", Operator: corev1.TolerationOpEqual, Value: pick(d, "red", "blue")},
		corev1.Toleration{
			Key:      "spot",
			Operator: corev1.TolerationOpExists,
		}, corev1.Toleration{Operator: corev1.TolerationOpExists}, corev1.Toleration{Key: "team", Value: "red"},
		corev1.Toleration{Key: "level", Operator: pick(d, corev1.TolerationOpLt, corev1.TolerationOpGt), Value: "5"},
		corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}) {
		if d.oneIn(3) {
			toleration.Effect = pick(d, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
				corev1.TaintEffectNoExecute)
			spec.Tolerations = append(spec.Tolerations, toleration)
		}
	}
	if d.oneIn(8) {
		spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	d.affinity(spec)
	for range max(0, d.IntN(6)-3) {
		spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, d.spread())
	}
	return p
}

// variant returns a pod that differs from another in one field: it finds errors in the keys of caches.
func (d generator) variant(of *corev1.Pod) *corev1.Pod {
	pod := of.DeepCopy()
	pod.Name += "-variant"
	pod.UID = types.UID(pod.Name)
	s := &pod.Spec
	container := &pod.Spec.Containers[0]
	if len(s.Tolerations) > 0 && d.oneIn(2) {
		d.otherToleration(&s.Tolerations[d.IntN(len(s.Tolerations))])
		return pod
	}
	switch d.IntN(6) {
	case 0:
		s.NodeSelector = map[string]string{"disk": pick(d, "ssd", "hdd")}
	case 1:
		if a := s.Affinity; a != nil && a.NodeAffinity != nil {
			for i := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
				w := &a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
				w.Weight = 101 - w.Weight
			}
		}
	case 2:
		container.Image = pick(d, "small:1", "base", "registry.example:5000/large:2", "huge@sha256:0", "none")
	case 3:
		for i := range container.Ports {
			port := &container.Ports[i]
			port.HostPort = pick[int32](d, 80, 443)
			if d.oneIn(2) {
				port.HostIP = pick(d, "", "10.0.0.1", "10.0.0.2")
			}
		}
	case 4:
		container.Resources.Requests["memory"] = resource.MustParse(pick(d, "128Mi", "1Gi", "4Gi"))
	case 5:
		container.Resources.Requests["example.com/gpu"] = resource.MustParse(pick(d, "0", "1", "2"))
	}
	return pod
}

// otherToleration changes one field.
func (d generator) otherToleration(toleration *corev1.Toleration) {
	ordered := toleration.Operator == corev1.TolerationOpLt || toleration.Operator == corev1.TolerationOpGt
	switch d.IntN(4) {
	case 0:
		toleration.Effect = pick(d, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
			corev1.TaintEffectNoExecute)
	case 1:
		if toleration.Key != "" && !ordered {
			toleration.Key = pick(d, "team", "spot", "level")
		}
	case 2:
		switch {
		case ordered:
			toleration.Operator = pick(d, corev1.TolerationOpLt, corev1.TolerationOpGt)
		case toleration.Key != "" && toleration.Value == "":
			toleration.Operator = pick(d, corev1.TolerationOpEqual, corev1.TolerationOpExists)
		}
	case 3:
		switch {
		case ordered:
			toleration.Value = pick(d, "1", "5", "9")
		case toleration.Value != "":
			toleration.Value = pick(d, "red", "blue")
		}
	}
}

// bound returns a pod that another scheduler has bound: its node may be full or not exist. Some pods are being resized
// or terminating.
func (d generator) bound(i, nodes int) *corev1.Pod {
	p := d.pod(i)
	p.Spec.NodeName = fmt.Sprint("n", d.IntN(nodes+2))
	if d.oneIn(6) {
		p.DeletionTimestamp = new(metav1.NewTime(time.Unix(1, 0)))
	}
	if d.oneIn(4) {
		p.Status = *d.resized(p.Spec.Containers)
	}
	return p
}

// resized returns the status of containers during an in-place resize.
func (d generator) resized(of []corev1.Container) *corev1.PodStatus {
	status := &corev1.PodStatus{}
	for _, c := range of {
		st := corev1.ContainerStatus{Name: c.Name, AllocatedResources: d.requests()}
		if d.oneIn(2) {
			st.Resources = &corev1.ResourceRequirements{Requests: d.requests()}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, st)
	}
	if d.oneIn(2) {
		status.Conditions = []corev1.PodCondition{
			{
				Type:   corev1.PodResizePending,
				Status: corev1.ConditionTrue,
				Reason: pick(d, corev1.PodReasonInfeasible, corev1.PodReasonDeferred),
			},
		}
	}
	return status
}

func (d generator) nodeTerm() corev1.NodeSelectorTerm {
	var term corev1.NodeSelectorTerm
	term.MatchExpressions = pickUpTo(d, 2, corev1.NodeSelectorRequirement{
		Key:      "disk",
		Operator: pick(d, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn),
		Values:   []string{"ssd"},
	},
		corev1.NodeSelectorRequirement{
			Key:      "cores",
			Operator: pick(d, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt),
			Values:   []string{"4"},
		},
		corev1.NodeSelectorRequirement{
			Key:      corev1.LabelTopologyZone,
			Operator: corev1.NodeSelectorOpIn,
			Values:   []string{"a", "b"},
		},
		corev1.NodeSelectorRequirement{
			Key:      pick(d, "disk", "cores"),
			Operator: pick(d, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist),
		})
	if d.oneIn(4) {
		term.MatchFields = []corev1.NodeSelectorRequirement{{
			Key:      "metadata.name",
			Operator: pick(d, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn),
			Values:   []string{fmt.Sprint("n", d.IntN(4))},
		}}
	}
	return term
}

func (d generator) selector() *metav1.LabelSelector {
	switch d.IntN(12) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{
				Key:      "app",
				Operator: pick(d, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpIn),
				Values: []string{
					"x",
				},
			},
		}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "rev", Operator: pick(d, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)},
		}}
	default:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(d, "x", "y")}}
	}
}

func (d generator) key() string {
	return pick(d, corev1.LabelHostname, corev1.LabelTopologyZone, "disk")
}

func (d generator) podTerm() corev1.PodAffinityTerm {
	if len(d.terms) == 3 && !d.oneIn(3) {
		return pick(d, d.terms...)
	}
	term := corev1.PodAffinityTerm{TopologyKey: d.key()}
	if d.oneIn(15) {
		return term // selects no pod
	}
	term.LabelSelector = d.selector()
	if d.oneIn(4) {
		term.Namespaces = pickUpTo(d, 2, "default", "red", "blue")
	}
	if d.oneIn(3) {
		tierA := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "a"}}
		term.NamespaceSelector = pick(d, &metav1.LabelSelector{}, tierA, tierA)
	}
	switch d.IntN(8) {
	case 0:
		term.MatchLabelKeys = []string{"rev"}
	case 1:
		term.MismatchLabelKeys = []string{"rev"}
	}
	return term
}

func (d generator) affinity(spec *corev1.PodSpec) {
	var a corev1.Affinity
	if d.oneIn(4) {
		nodeAffinity := &corev1.NodeAffinity{}
		if d.oneIn(2) {
			nodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{d.nodeTerm()},
			}
			if d.oneIn(2) {
				nodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = append(
					nodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, d.nodeTerm())
			}
		}
		for range d.IntN(3) {
			nodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
				nodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{
					Weight:     1 + d.Int32N(100),
					Preference: d.nodeTerm(),
				})
		}
		a.NodeAffinity = nodeAffinity
	}
	required := func() (ts []corev1.PodAffinityTerm) {
		for range max(0, d.IntN(5)-2) {
			ts = append(ts, d.podTerm())
		}
		return ts
	}
	preferred := func() (ts []corev1.WeightedPodAffinityTerm) {
		for range max(0, d.IntN(5)-2) {
			ts = append(ts, corev1.WeightedPodAffinityTerm{Weight: 1 + d.Int32N(100), PodAffinityTerm: d.podTerm()})
		}
		return ts
	}
	if d.oneIn(4) {
		a.PodAffinity = &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  required(),
			PreferredDuringSchedulingIgnoredDuringExecution: preferred(),
		}
	}
	if d.oneIn(4) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  required(),
			PreferredDuringSchedulingIgnoredDuringExecution: preferred(),
		}
	}
	if a != (corev1.Affinity{}) {
		spec.Affinity = &a
	}
}

func (d generator) spread() corev1.TopologySpreadConstraint {
	constraint := corev1.TopologySpreadConstraint{
		MaxSkew:           1 + d.Int32N(3),
		TopologyKey:       d.key(),
		LabelSelector:     d.selector(),
		WhenUnsatisfiable: pick(d, corev1.DoNotSchedule, corev1.ScheduleAnyway),
	}
	if constraint.WhenUnsatisfiable == corev1.DoNotSchedule && d.oneIn(3) {
		constraint.MinDomains = new(1 + d.Int32N(4))
	}
	if d.oneIn(3) {
		constraint.NodeAffinityPolicy = new(pick(d, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if d.oneIn(3) {
		constraint.NodeTaintsPolicy = new(pick(d, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if d.oneIn(4) {
		constraint.MatchLabelKeys = []string{"rev"}
	}
	return constraint
}

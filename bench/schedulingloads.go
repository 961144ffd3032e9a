// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// workload is a workload of Kubernetes' scheduler benchmark (test/integration/scheduler_perf), with its numbers.
type workload struct {
	name                string
	nodes, before, pods int
	floor, target       float64
	zones               []string // of the nodes, in turn
	first, pod          shape    // of the pods before the measurement, and of the measured ones
	churn               shape    // five pods per second of this shape are created during the measurement
	refused             bool     // the pods before fit on no node
	refusals            bool     // the measured pods fit on no node: they count when their condition says so
	restart             bool     // the scheduler starts when the pods before are bound; its first decision is timed
	setup               func(ctx context.Context, r *testbed, l *workload) error
}

// shape returns the i-th pod, without its name.
type shape func(i int) *corev1.Pod

var (
	oneZone    = []string{"zone1"}
	threeZones = []string{"moon-1", "moon-2", "moon-3"}
)

// schedulingLoads are rows of docs/performance.md.
var schedulingLoads = []workload{
	{
		name:   "plain",
		nodes:  5000,
		before: 1000,
		pods:   10000,
		floor:  680,
		target: 8000,
		first:  plain,
		pod:    plain,
	},
	{
		name:   "node-affinity",
		nodes:  5000,
		before: 5000,
		pods:   10000,
		floor:  220,
		target: 4000,
		zones:  oneZone,
		first:  inZones,
		pod:    inZones,
	},
	{
		name:   "pod-affinity",
		nodes:  5000,
		before: 5000,
		pods:   5000,
		floor:  35,
		target: 1500,
		zones:  oneZone,
		first:  within("sched-0", near),
		pod:    within("sched-1", near),
	},
	{
		name:   "preferred-affinity",
		nodes:  5000,
		before: 5000,
		pods:   5000,
		floor:  90,
		target: 1500,
		first:  within("sched-0", preferring(false)),
		pod:    within("sched-1", preferring(false)),
	},
	{
		name:   "preferred-anti-affinity",
		nodes:  5000,
		before: 5000,
		pods:   5000,
		floor:  90,
		target: 1500,
		first:  within("sched-0", preferring(true)),
		pod:    within("sched-1", preferring(true)),
	},
	{
		name:   "anti-affinity-nsselector",
		nodes:  6000,
		before: 4000,
		pods:   2000,
		floor:  24,
		target: 500,
		first:  func(i int) *corev1.Pod { return apart(fmt.Sprintf("init-ns-%d", i%teams), nil) },
		pod:    func(int) *corev1.Pod { return apart("measure-ns-0", nil) },
		setup:  setupTeams,
	},
	{
		name:   "anti-affinity",
		nodes:  5000,
		before: 1000,
		pods:   2000,
		floor:  60,
		target: 1000,
		first:  func(int) *corev1.Pod { return apart("sched-0", both) },
		pod:    func(int) *corev1.Pod { return apart("sched-1", both) },
	},
	{
		name:   "spread-hard",
		nodes:  5000,
		before: 5000,
		pods:   5000,
		floor:  460,
		target: 3000,
		zones:  threeZones,
		first:  plain,
		pod:    spread(corev1.DoNotSchedule),
	},
	{
		name:   "spread-soft",
		nodes:  5000,
		before: 5000,
		pods:   5000,
		floor:  340,
		target: 2500,
		zones:  threeZones,
		first:  plain,
		pod:    spread(corev1.ScheduleAnyway),
	},
	{
		name:   "spread-default",
		nodes:  5000,
		before: 5000,
		pods:   50000,
		floor:  160,
		target: 3000,
		zones:  threeZones,
		first:  plain,
		pod:    ofService,
		setup:  setupService,
	},
	{
		name:   "unschedulable-churn",
		nodes:  5000,
		before: 20000,
		pods:   10000,
		floor:  600,
		target: 6000,
		first:  plain,
		pod:    plain,
		churn:  tooLarge,
	},
	{
		name:    "unschedulable-pending",
		nodes:   5000,
		before:  20000,
		pods:    10000,
		floor:   600,
		target:  6000,
		first:   tooLarge,
		pod:     plain,
		churn:   tooLarge,
		refused: true,
	},
	{
		name:     "unschedulable",
		nodes:    5000,
		before:   20000,
		pods:     10000,
		target:   6000,
		first:    plain,
		pod:      tooLarge,
		refusals: true,
	},
	{
		name:   "preemption",
		nodes:  5000,
		before: 20000,
		pods:   5000,
		floor:  570,
		target: 3000,
		first:  low,
		pod:    high,
	},
	{
		name:   "preemption-async",
		nodes:  5000,
		before: 20000,
		pods:   5000,
		floor:  570,
		target: 3000,
		first:  low,
		pod:    plain,
		churn:  high,
	},
	{
		name:   "volumes",
		nodes:  5000,
		before: 5000,
		pods:   5000,
		floor:  100,
		target: 1000,
		first:  claiming("first"),
		pod:    claiming(measuredPods),
		setup:  setupVolumes,
	},
	{
		name:   "volumes-late",
		nodes:  5000,
		before: 5000,
		pods:   5000,
		floor:  100,
		target: 1000,
		first:  claiming("first"),
		pod:    claiming(measuredPods),
		setup:  setupLateVolumes,
	},
	{
		name:    "restart",
		nodes:   5000,
		before:  100000,
		pods:    1,
		pod:     plain,
		restart: true,
	},
}

// scaled returns l with the numbers of nodes and pods multiplied; they stay at least 10.
func (l workload) scaled(by float64) workload {
	if by == 0 || by == 1 {
		return l
	}
	for _, n := range []*int{&l.nodes, &l.before, &l.pods} {
		if *n > 1 {
			*n = max(int(float64(*n)*by), 10)
		}
	}
	return l
}

// both are the namespaces in affinity terms.
var both = []string{"sched-1", "sched-0"}

// teams is the number of namespaces of the pods before, for workloads with namespace selectors.
const teams = 100

// prepare creates namespaces, nodes and other objects of the workload.
func (l *workload) prepare(ctx context.Context, r *testbed) error {
	for _, name := range both {
		if err := r.namespace(ctx, name, nil); err != nil {
			return err
		}
	}
	if err := parallel(ctx, l.nodes, func(ctx context.Context, i int) error {
		_, err := r.CoreV1().Nodes().Create(ctx, l.node(i), metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	if l.setup != nil {
		return l.setup(ctx, r, l)
	}
	return nil
}

// initial creates the pods before the measurement and waits until each has been tried.
func (l *workload) initial(ctx context.Context, r *testbed) error {
	if err := r.create(ctx, l.before, "first", l.first); err != nil {
		return err
	}
	if l.refused {
		return reach(ctx, "tried", &r.refused, int64(l.before))
	}
	return reach(ctx, "bound", &r.bound, int64(l.before))
}

func (r *testbed) namespace(ctx context.Context, name string, labels map[string]string) error {
	_, err := r.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: labels,
	}}, metav1.CreateOptions{})
	return err
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func (l *workload) node(i int) *corev1.Node {
	list := resources("4", "32Gi")
	list[corev1.ResourcePods] = resource.MustParse("110")
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{corev1.LabelHostname: nodeName(i)}},
		Status: corev1.NodeStatus{
			Capacity:    list,
			Allocatable: list,
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
			},
		},
	}
	if len(l.zones) > 0 {
		n.Labels[corev1.LabelTopologyZone] = l.zones[i%len(l.zones)]
	}
	return n
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory),
	}
}

// sized is a pod with these resource requests.
func sized(cpu, memory string) *corev1.Pod {
	list := resources(cpu, memory)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:      "pause",
			Image:     "registry.k8s.io/pause:3.10.2",
			Ports:     []corev1.ContainerPort{{ContainerPort: 80}},
			Resources: corev1.ResourceRequirements{Requests: list, Limits: list},
		}}},
	}
}

func plain(int) *corev1.Pod { return sized("100m", "500Mi") }

// placed returns pods that are bound to n nodes in turn.
func placed(n int) shape {
	return func(i int) *corev1.Pod {
		p := sized("10m", "50Mi")
		p.Spec.NodeName = nodeName(i % n)
		return p
	}
}

func withPriority(p *corev1.Pod, priority int32) *corev1.Pod {
	p.Spec.Priority = &priority
	p.Spec.TerminationGracePeriodSeconds = new(int64)
	return p
}

func low(int) *corev1.Pod      { return withPriority(sized("900m", "500Mi"), 0) }
func high(int) *corev1.Pod     { return withPriority(sized("3", "500Mi"), 10) }
func tooLarge(int) *corev1.Pod { return withPriority(sized("9", "500Mi"), 10) }

func colored(namespace, color string) *corev1.Pod {
	p := plain(0)
	p.Namespace = namespace
	p.Labels = map[string]string{"color": color}
	p.Spec.Affinity = &corev1.Affinity{}
	return p
}

func within(namespace string, s func(namespace string) *corev1.Pod) shape {
	return func(int) *corev1.Pod { return s(namespace) }
}

func selects(labels map[string]string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: maps.Clone(labels)}
}

// inZones returns pods with a required node affinity that all nodes match.
func inZones(int) *corev1.Pod {
	p := plain(0)
	p.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key:      corev1.LabelTopologyZone,
				Operator: corev1.NodeSelectorOpIn,
				Values:   []string{"zone1", "zone2"},
			}}}},
		}},
	}
	return p
}

func near(namespace string) *corev1.Pod {
	p := colored(namespace, "blue")
	p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: selects(p.Labels),
			TopologyKey:   corev1.LabelTopologyZone,
			Namespaces:    both,
		}},
	}
	return p
}

func preferring(away bool) func(string) *corev1.Pod {
	return func(namespace string) *corev1.Pod {
		pod := colored(namespace, "red")
		terms := []corev1.WeightedPodAffinityTerm{{
			Weight: 1,
			PodAffinityTerm: corev1.PodAffinityTerm{
				LabelSelector: selects(pod.Labels),
				TopologyKey:   corev1.LabelHostname,
				Namespaces:    both,
			},
		}}
		if away {
			pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: terms,
			}
		} else {
			pod.Spec.Affinity.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}
		}
		return pod
	}
}

var devops = map[string]string{"team": "devops"}

// apart returns pods of which only one fits on a node. Without namespaces the term selects the namespaces of a team.
func apart(namespace string, namespaces []string) *corev1.Pod {
	pod := colored(namespace, "green")
	term := corev1.PodAffinityTerm{
		LabelSelector: selects(pod.Labels),
		TopologyKey:   corev1.LabelHostname,
		Namespaces:    namespaces,
	}
	if namespaces == nil {
		term.NamespaceSelector = selects(devops)
	}
	pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
	}
	return pod
}

func setupTeams(ctx context.Context, r *testbed, _ *workload) error {
	if err := r.namespace(ctx, "measure-ns-0", devops); err != nil {
		return err
	}
	return parallel(ctx, teams, func(ctx context.Context, i int) error {
		return r.namespace(ctx, fmt.Sprintf("init-ns-%d", i), devops)
	})
}

func spread(action corev1.UnsatisfiableConstraintAction) shape {
	return func(int) *corev1.Pod {
		p := colored(metav1.NamespaceDefault, "blue")
		p.Spec.Affinity = nil
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew:           5,
			TopologyKey:       corev1.LabelTopologyZone,
			WhenUnsatisfiable: action,
			LabelSelector:     selects(p.Labels),
		}}
		return p
	}
}

// ofService returns pods without requests that a Service selects.
func ofService(int) *corev1.Pod {
	p := plain(0)
	p.Namespace = both[0]
	p.Labels = map[string]string{"app": "scheduler-perf"}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	p.Spec.Containers[0].Ports = nil
	return p
}

func setupService(ctx context.Context, r *testbed, _ *workload) error {
	_, err := r.CoreV1().Services(both[0]).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "service"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "scheduler-perf"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8000)}},
		},
	}, metav1.CreateOptions{})
	return err
}

const driver = "ebs.csi.aws.com"

func claiming(prefix string) shape {
	return func(i int) *corev1.Pod {
		p := plain(0)
		p.Spec.Volumes = []corev1.Volume{{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: fmt.Sprintf("%s-%d", prefix, i),
				},
			},
		}}
		return p
	}
}

// setupVolumes creates a bound claim per pod and the volume limit of the nodes.
func setupVolumes(ctx context.Context, r *testbed, l *workload) error {
	if err := parallel(ctx, l.nodes, func(ctx context.Context, i int) error {
		_, err := r.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name:        driver,
				NodeID:      nodeName(i),
				Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(39))},
			}}},
		}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	claims := func(prefix string, n int) error {
		return parallel(ctx, n, func(ctx context.Context, i int) error {
			return r.boundClaim(ctx, fmt.Sprintf("%s-%d", prefix, i))
		})
	}
	if err := claims("first", l.before); err != nil {
		return err
	}
	return claims(measuredPods, l.pods)
}

func (r *testbed) boundClaim(ctx context.Context, name string) error {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	if _, err := r.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   modes,
			Capacity:                      size,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
			ClaimRef: &corev1.ObjectReference{Namespace: metav1.NamespaceDefault, Name: name},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := r.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "true"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      modes,
			VolumeName:       name,
			StorageClassName: new(string),
			Resources:        corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	return err
}

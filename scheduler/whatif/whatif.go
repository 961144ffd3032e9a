// SPDX-License-Identifier: Apache-2.0

// Package whatif answers where pods would go, without changing anything: it reads the cluster's state once, lets the
// core of the scheduler decide on that copy, and adds, drains and removes nodes and pods in it. `keelson whatif` asks
// it. It never sends a write, and runs neither queue nor binding cycle.
package whatif

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/api/gates"
	"keelson/client"
	"keelson/scheduler/core"
	"keelson/scheduler/extender"
	"keelson/scheduler/framework"
	"keelson/scheduler/source"
	"keelson/scheduler/state"
)

// Max bounds the pods and the scheduling attempts of one question; Config.Max may be less.
const Max = 10000

// MaxBytes bounds the pods and claims that one question makes of templates; Config.MaxBytes may be less.
const MaxBytes = 512 << 20

// TooManyError means that a question has more of something than one may have.
type TooManyError struct {
	Of  string
	Max int
}

func (e *TooManyError) Error() string {
	return fmt.Sprintf("more than %d %s are too many for one what-if", e.Max, e.Of)
}

// Question is what to try on a copy of a cluster's state.
type Question struct {
	Manifest Manifest
	// Drain are nodes to cordon; their pods move, except those of DaemonSets. Remove are nodes to delete with all their
	// pods.
	Drain, Remove []string
	Add           []*corev1.Node
	// Reader wraps the client's transport. May be nil: then a forbidden request is retried until the context ends.
	Reader *Reader
}

// Outcome is where one pod would go.
type Outcome struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Workload is the controller of the pod ("Deployment/web"); empty for a pod without a controller.
	Workload string `json:"of,omitempty"`
	// Why is the pod here: "new", "pending", "leaves node-1", "preempted on node-1".
	Why string `json:"why"`
	// Node is the chosen node; empty: the pod stays pending, and Reason says why.
	Node   string `json:"node,omitempty"`
	Reason string `json:"reason,omitempty"`
	// NoFit is Reason without why preemption does not help; empty: Reason says nothing of that.
	NoFit string `json:"noFit,omitempty"`
	// Decision is the attempt as the scheduler would have recorded it; nil: the scheduler would not try the pod.
	Decision *decisions.Attempt `json:"decision,omitempty"`
}

// LostPod is a removed pod that no controller recreates.
type LostPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Why       string `json:"why"`
}

// Answer is what would become of the pods, in the order in which they were tried.
type Answer struct {
	Nodes    int       `json:"nodes"`
	Outcomes []Outcome `json:"outcomes"`
	Lost     []LostPod `json:"lost,omitempty"`
	// Notes say what the answer leaves out.
	Notes []string `json:"notes,omitempty"`
}

// Ask runs the scheduler's plugins on a copy of the cluster state that cfg.Client reads now. It sends only read
// requests; a Reader enforces that. It calls extenders to filter and score nodes, and for nothing else.
func Ask(ctx context.Context, cfg Config, question *Question) (*Answer, error) {
	t, err := newSimulation(cfg)
	if err != nil {
		return nil, err
	}
	defer t.extenders.Close()
	pending, err := t.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", ""), fields.OneTermEqualSelector("status.phase",
			string(corev1.PodPending))).String()})
	if err != nil {
		return nil, fmt.Errorf("list pending pods: %w", err)
	}
	classes, err := t.client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list priority classes: %w", err)
	}
	if err := t.read(ctx, question.Reader); err != nil {
		return nil, err
	}
	if question.Reader != nil && question.Reader.policies.Load() {
		t.note("SchedulingPolicies do not count: they may not be read")
	}
	if err := t.changeNodes(question); err != nil {
		return nil, err
	}
	for i := range pending.Items {
		if p := &pending.Items[i]; p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
			t.add(p, "pending", "")
		}
	}
	if err := t.addManifest(ctx, &question.Manifest, classes.Items); err != nil {
		return nil, err
	}
	if err := t.run(ctx); err != nil {
		return nil, err
	}
	t.noteGroups()
	return t.answer, nil
}

// noteGroups adds a note that pods of pod groups are tried one by one.
func (t *simulation) noteGroups() {
	const most = 3
	slices.Sort(t.grouped)
	names := slices.Compact(t.grouped)
	if len(names) == 0 {
		return
	}
	list := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	t.note("the pods of pod groups are tried one by one: not considered is that minCount of them get nodes together " +
		"or none does, nor the preemption by a group as a whole (" + list + ")")
}

// simulation is one run of Ask.
type simulation struct {
	core      *core.Core
	source    *source.Source
	client    client.Interface
	extenders *extender.Set
	gates     gates.On

	max      int // pods, and attempts
	maxBytes int // of made objects
	made     int // bytes of pods and claims that were made
	answer   *Answer
	work     []task
	created  int // pods
	// admitted counts objects of the manifest.
	admitted int
	limits   map[string]*namespaceLimits // by namespace
	classes  map[string]*int32           // priorities by class; "" is the default
	// claimTemplates are those that pods refer to, by namespace and name; nil: it cannot be read.
	claimTemplates map[string]*resourcev1.ResourceClaimTemplate
	// failedExtenders are the extenders that failed.
	failedExtenders []string
	drained         map[string]bool
	pdbs            drainedPDBs // if a node is drained
	// grouped are the pod groups of pods that were tried one by one, one name a pod.
	grouped []string
}

func (t *simulation) note(text string) {
	if !slices.Contains(t.answer.Notes, text) {
		t.answer.Notes = append(t.answer.Notes, text)
	}
}

type task struct {
	pod      *corev1.Pod
	workload string
	why      string
	number   int
	daemon   bool // of a DaemonSet: pinned to a node, to which the DaemonSet may not apply
}

func (t *simulation) add(pod *corev1.Pod, why, of string) {
	t.created++
	t.core.Groups.AddPod(pod)
	t.work = append(t.work, task{
		pod:      pod,
		workload: of,
		why:      why,
		number:   t.created,
	})
}

// count counts an object that is made of a template, as stored bytes and what it takes besides.
func (t *simulation) count(made interface{ Size() int }) error {
	const besides = 1 << 10
	if t.made += made.Size() + besides; t.made > t.maxBytes {
		return &TooManyError{"bytes of pods and claims", t.maxBytes}
	}
	return nil
}

// changeNodes adds, drains and removes nodes.
func (t *simulation) changeNodes(question *Question) error {
	for _, n := range question.Add {
		if t.core.Cache.Refresh().Node(n.Name) != nil {
			return fmt.Errorf("there is a node %s already", n.Name)
		}
		t.core.Cache.SetNode(n)
	}
	if len(question.Drain) > 0 {
		t.pdbs = newDrainedPDBs(t.source.Budgets())
		t.drained = map[string]bool{}
	}
	for _, name := range question.Drain {
		n := t.core.Cache.Refresh().Node(name)
		if n == nil {
			return fmt.Errorf("there is no node %s to drain", name)
		}
		if t.drained[name] {
			continue
		}
		t.drained[name] = true
		pods := slices.Clone(n.Pods)
		node := n.Node.DeepCopy()
		node.Spec.Unschedulable = true
		t.core.Cache.SetNode(node)
		if err := t.removePods(pods, "leaves "+name, drained); err != nil {
			return err
		}
	}
	for _, text := range t.pdbs.notes(question.Drain) {
		t.note(text)
	}
	for _, name := range question.Remove {
		n := t.core.Cache.Refresh().Node(name)
		if n == nil {
			return fmt.Errorf("there is no node %s to remove", name)
		}
		if err := t.removePods(slices.Clone(n.Pods), "leaves "+name, removed); err != nil {
			return err
		}
		t.core.Cache.RemoveNode(name)
	}
	return nil
}

// cause is why pods leave a node.
type cause int

const (
	drained   cause = iota // the node is cordoned
	removed                // the node is gone
	preempted              // the node stays as it is
)

// removePods removes pods from their nodes. Pods with a controller are tried again. A DaemonSet's pod stays on a
// drained node, disappears with a removed node, and is tried again on its node after a preemption.
func (t *simulation) removePods(pods []*state.PodInfo, why string, by cause) error {
	for _, info := range pods {
		owner := metav1.GetControllerOfNoCopy(info.Pod)
		_, mirror := info.Pod.Annotations[corev1.MirrorPodAnnotationKey]
		daemon := owner != nil && owner.Kind == "DaemonSet"
		if by == drained && (mirror || daemon) {
			continue
		}
		if by == drained {
			t.pdbs.countEviction(info.Pod)
		}
		t.core.Cache.RemovePod(info.Pod.UID)
		t.core.Groups.RemovePod(info.Pod)
		switch {
		case by == removed && (mirror || daemon): // it goes with its node
		case mirror:
			t.answer.Lost = append(t.answer.Lost,
				LostPod{info.Pod.Namespace, info.Pod.Name, why + ", and its kubelet recreates it: it is a static pod"})
		case owner == nil:
			t.answer.Lost = append(t.answer.Lost,
				LostPod{info.Pod.Namespace, info.Pod.Name, why + ", and no controller recreates it"})
		default:
			next := recreated(info.Pod)
			if err := t.renewClaims(info.Pod, next); err != nil {
				return err
			}
			if daemon {
				pin(&next.Spec, info.Pod.Spec.NodeName)
			}
			t.add(next, why, owner.Kind+"/"+owner.Name)
		}
	}
	return nil
}

// recreated returns a pod as its controller would create it again.
func recreated(pod *corev1.Pod) *corev1.Pod {
	c := pod.DeepCopy()
	c.UID = types.UID("again-" + string(pod.UID))
	c.Spec.NodeName = ""
	c.Status = corev1.PodStatus{}
	c.DeletionTimestamp = nil
	return c
}

// run tries the pods by priority. With equal priority, existing pods come before new ones.
func (t *simulation) run(ctx context.Context) error {
	tried := 0
	for len(t.work) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("try pods: %w", err)
		}
		if tried++; tried > t.max {
			return &TooManyError{"attempts", t.max}
		}
		at := 0
		for i := range t.work {
			if triedBefore(&t.work[i], &t.work[at]) {
				at = i
			}
		}
		next := t.work[at]
		t.work = slices.Delete(t.work, at, at+1)
		if err := t.try(ctx, &next); err != nil {
			return err
		}
	}
	t.answer.Nodes = len(t.core.Cache.Refresh().Nodes)
	return nil
}

func triedBefore(x, y *task) bool {
	return cmp.Or(cmp.Compare(priority(y.pod), priority(x.pod)), cmp.Compare(x.number, y.number)) < 0
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// try runs one attempt, and assumes the pod on the chosen node.
func (t *simulation) try(ctx context.Context, it *task) error {
	pod := it.pod
	out := it.outcome("")
	profile := t.core.Profile(pod)
	switch {
	case profile == nil:
		out.Reason = fmt.Sprintf("it waits for the scheduler %q", pod.Spec.SchedulerName)
	case len(pod.Spec.SchedulingGates) > 0:
		out.Reason = "it has scheduling gates"
	}
	if out.Reason != "" {
		t.answer.Outcomes = append(t.answer.Outcomes, out)
		return nil
	}
	if key, ok := state.GroupOf(pod); ok {
		if t.core.Groups != nil && !it.daemon {
			return t.tryGroup(ctx, it)
		}
		t.grouped = append(t.grouped, key.String())
	}
	info := state.NewPodInfo(pod)
	attempt := t.decide(ctx, profile.Engine, t.core.Cache, info, nil)
	if it.daemon && len(attempt.Refused) == 1 && slices.Contains([]string{"NodeAffinity", "TaintToleration"},
		attempt.Refused[0].Status.Plugin) {
		return nil // the DaemonSet would not create it
	}
	if it.daemon {
		if out.Reason = t.limits[pod.Namespace].useQuota(pod, "pods"); out.Reason != "" {
			t.answer.Outcomes = append(t.answer.Outcomes, out)
			return nil
		}
	}
	if attempt.Chosen == nil && attempt.Failed == nil && len(attempt.Snapshot.Nodes) > 0 {
		attempt.PostFilterMessage = wouldPreempt(profile, attempt)
		for _, name := range t.extenders.Preempting(pod) {
			t.note(name + " is not called to choose victims")
		}
	}
	out.Decision = t.explain(attempt)
	noFit := attempt.NoFit()
	if preemption := attempt.Preemption; preemption != nil {
		for _, v := range preemption.Victims {
			if err := t.removePods([]*state.PodInfo{v}, fmt.Sprintf("preempted on %s by %s/%s", preemption.NodeOf(v),
				pod.Namespace, pod.Name), preempted); err != nil {
				return err
			}
		}
		attempt = t.decide(ctx, profile.Engine, t.core.Cache, info, nil)
	}
	if attempt.Chosen == nil {
		out.Reason = out.Decision.Message
		out.NoFit = noFit
		t.answer.Outcomes = append(t.answer.Outcomes, out)
		return nil
	}
	t.assume(ctx, attempt, out)
	return nil
}

// assume assumes a pod on the chosen node and runs Reserve.
func (t *simulation) assume(ctx context.Context, a *framework.Attempt, out Outcome) {
	if err := t.core.Assume(ctx, t.core.NewPlacement(a), a.Chosen, nil); err != nil {
		out.Reason = err.Error()
	} else {
		out.Node = a.Chosen.Name
		t.allocateClaims(a.Pod.Pod)
	}
	t.answer.Outcomes = append(t.answer.Outcomes, out)
}

// wouldPreempt sets a.Preemption to the victims that the pod would preempt, or returns why there are none.
func wouldPreempt(p *core.Profile, a *framework.Attempt) (why string) {
	if policy := a.Pod.Pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return ""
	}
	for _, post := range p.PostFilter {
		if post.Victims != nil {
			preemption, why := post.Victims(a)
			if a.Preemption = preemption; preemption == nil {
				return "preemption: " + why
			}
		}
	}
	return ""
}

// complete sets the fields of a new pod that the API server would set, and its UID. It refuses what the API server
// would.
func (t *simulation) complete(pod *corev1.Pod) error {
	if err := t.admit(pod); err != nil {
		return err
	}
	pod.UID = types.UID(fmt.Sprintf("new-%d", t.created+1))
	if pod.Spec.NodeName != "" {
		return fmt.Errorf("pod %s/%s has spec.nodeName: it needs no scheduler", pod.Namespace, pod.Name)
	}
	if pod.Spec.Priority != nil {
		return nil
	}
	value, ok := t.classes[pod.Spec.PriorityClassName]
	if !ok && pod.Spec.PriorityClassName != "" && !strings.HasPrefix(pod.Spec.PriorityClassName, "system-") {
		return fmt.Errorf("pod %s/%s: there is no priority class %s", pod.Namespace, pod.Name,
			pod.Spec.PriorityClassName)
	}
	pod.Spec.Priority = value
	return nil
}

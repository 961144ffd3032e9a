// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"keelson/api/core/localvolume"
	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// VolumeBinding sends a pod where its volumes are, or can be, and before the pod is bound binds the claims that waited for it
// (volumeBindingMode WaitForFirstConsumer). It writes: volumes' claims and claims' selected nodes.
type VolumeBinding struct {
	Storage *Storage
	// Limit is how long a binding waits for its volumes; 0: as long as Kubernetes.
	Limit time.Duration
	// Rank scores what volumes take of what there is, 0..MaxScore; nil: the less the better.
	Rank func(taken, offers int64) int64
}

// Name is the plugin's.
func (*VolumeBinding) Name() string { return "VolumeBinding" }

const volumeBinding = "VolumeBinding"

// What users know from events.
var (
	noVolumeToBind = framework.Refuse(volumeBinding, framework.Unresolvable, "node(s) didn't find available persistent volumes to bind")
	elsewhere      = framework.Refuse(volumeBinding, framework.Unresolvable, "node(s) didn't match PersistentVolume's node affinity")
	noSpace        = framework.Refuse(volumeBinding, framework.Unresolvable, "node(s) did not have enough free storage")
	noSuchVolume   = framework.Refuse(volumeBinding, framework.Unresolvable, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
)

// claimsOfPod are a pod's claims by what is to be done about them.
type claimsOfPod struct {
	storage  *Storage
	snapshot *state.Snapshot
	bound    []*corev1.PersistentVolume      // of bound claims; nil: there is none of that name
	late     []*corev1.PersistentVolumeClaim // to be bound for the node

	wants    []*want     // of the late claims, in their order, if FilterAll has looked at all nodes from stock; nil: it has not
	measured atomic.Bool // on some node it is known what there is of storage
	mu       sync.Mutex
	chosen   map[string][]choice // for late claims, on nodes that fit
}

// PreFilter has nothing to say about pods without claims.
func (b *VolumeBinding) PreFilter(c *framework.CycleState, pod *state.PodInfo, s *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if b == nil || !b.Storage.known() || len(pod.Uses) == 0 {
		return nil, nil
	}
	found, why := b.Storage.claimsOf(pod.Pod)
	if why != "" {
		return nil, framework.Refuse(volumeBinding, framework.Unresolvable, why)
	}
	if found == nil {
		return nil, nil
	}
	found.snapshot = s
	if len(found.late) == 0 {
		return found, nil
	}
	if c != nil {
		found.chosen = map[string][]choice{}
		volumesKey.Write(c, found)
	}
	return found, nil
}

// claimsOf sorts a pod's claims, or says why it cannot be scheduled now. nil: it has none.
func (s *Storage) claimsOf(p *corev1.Pod) (*claimsOfPod, string) {
	out := &claimsOfPod{storage: s}
	immediate := false
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		name := podkind.ClaimName(p, v)
		if name == "" {
			continue
		}
		claim := s.claim(p.Namespace, name)
		if slices.Contains(out.late, claim) {
			continue // a claim that two volumes of the pod name gets one volume
		}
		if why := unusable(p, v, name, claim); why != "" {
			return nil, why
		}
		class := s.class(claim)
		switch _, done := claim.Annotations[volume.AnnBindCompleted]; {
		case done && claim.Spec.VolumeName != "":
			out.bound = append(out.bound, s.volume(claim.Spec.VolumeName))
		case class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && claim.Spec.VolumeName == "":
			out.late = append(out.late, claim)
		default:
			immediate = true
		}
	}
	switch {
	case immediate:
		return nil, "pod has unbound immediate PersistentVolumeClaims"
	case len(out.bound)+len(out.late) == 0:
		return nil, ""
	}
	// The claims that ask for most choose last: they have the fewest volumes to choose from, and the smaller ones take the smallest.
	slices.SortStableFunc(out.late, func(a, b *corev1.PersistentVolumeClaim) int {
		x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	return out, ""
}

// unusable says why no pod can have the claim now.
func unusable(p *corev1.Pod, v *corev1.Volume, name string, claim *corev1.PersistentVolumeClaim) string {
	switch {
	case claim == nil && v.Ephemeral != nil:
		return fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case claim == nil:
		return fmt.Sprintf("persistentvolumeclaim %q not found", name)
	case claim.Status.Phase == corev1.ClaimLost:
		return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
	case claim.DeletionTimestamp != nil:
		return fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
	case v.Ephemeral != nil:
		if err := ephemeral.VolumeIsForPod(p, claim); err != nil {
			return err.Error()
		}
	}
	return ""
}

// Filter looks whether all volumes are, or can be, on the node.
func (c *claimsOfPod) Filter(n *state.NodeInfo) *framework.Status {
	for _, v := range c.bound {
		if v == nil {
			return noSuchVolume
		}
		if volume.CheckNodeAffinity(v, n.Node.Labels) != nil {
			return elsewhere
		}
	}
	if len(c.late) == 0 {
		return nil
	}
	choices, st := c.choose(n.Node)
	if st == nil && c.chosen != nil {
		c.keep(n.Name, choices)
	}
	return st
}

// FilterAll is Filter of all nodes.
func (c *claimsOfPod) FilterAll(out []*framework.Status) {
	for _, v := range c.bound {
		if v == nil {
			refuseAll(out, noSuchVolume)
			return
		}
		r := reachOf(c.snapshot, v)
		r.refuse(out, elsewhere)
	}
	if len(c.late) > 0 {
		c.filterLate(out)
	}
}

// keep remembers what was chosen on a node.
func (c *claimsOfPod) keep(node string, choices []choice) {
	if slices.ContainsFunc(choices, func(o choice) bool { return o.volume != nil || o.capacity != nil }) {
		c.measured.Store(true)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chosen[node] = choices
}

func (c *claimsOfPod) chosenOn(node string) ([]choice, bool) {
	c.mu.Lock()
	choices, ok := c.chosen[node]
	c.mu.Unlock()
	if place := c.placeOf(node); !ok && place >= 0 {
		return c.fromStock(place), true
	}
	return choices, ok
}

// choose finds a volume on the node for each late claim, or that it can be made there.
func (c *claimsOfPod) choose(node *corev1.Node) ([]choice, *framework.Status) {
	return c.chooseAmong(node, c.storage.unclaimed)
}

// chooseAmong does it with what free says that a claim could have.
func (c *claimsOfPod) chooseAmong(node *corev1.Node, free func(*corev1.PersistentVolumeClaim) []*corev1.PersistentVolume) ([]choice, *framework.Status) {
	var out []choice
	var mine map[string]*corev1.PersistentVolume // chosen for another claim of the pod
	for _, claim := range c.late {
		one, st := c.storage.chooseFor(claim, node, mine, free)
		if st != nil {
			return nil, st
		}
		if one.volume != nil {
			if mine == nil {
				mine = map[string]*corev1.PersistentVolume{}
			}
			mine[one.volume.Name] = one.volume
		}
		out = append(out, one)
	}
	return out, nil
}

func (s *Storage) chooseFor(claim *corev1.PersistentVolumeClaim, node *corev1.Node, mine map[string]*corev1.PersistentVolume,
	free func(*corev1.PersistentVolumeClaim) []*corev1.PersistentVolume,
) (choice, *framework.Status) {
	chosen, under := s.where(claim)
	selected := claim.Annotations[volume.AnnSelectedNode]
	if under && chosen.volume == "" {
		selected = chosen.node
	}
	if selected == "" {
		var candidates []*corev1.PersistentVolume
		if !under {
			candidates = free(claim)
		} else if v := s.volume(chosen.volume); v != nil {
			candidates = append(candidates, v)
		}
		v, err := volume.FindMatchingVolume(claim, candidates, node, mine, true, true)
		if err != nil {
			return choice{}, framework.Refuse(volumeBinding, framework.Failed, err.Error())
		}
		if v != nil {
			return choice{claim: claim, volume: v}, nil
		}
		if under {
			return choice{}, elsewhere
		}
	} else if selected != node.Name {
		return choice{}, noVolumeToBind
	}
	capacity, st := s.canProvision(claim, node)
	return choice{claim: claim, capacity: capacity}, st
}

// canProvision tells whether a volume for the claim can be made on the node, and of what, if that is known.
func (s *Storage) canProvision(claim *corev1.PersistentVolumeClaim, node *corev1.Node) (*storagev1.CSIStorageCapacity, *framework.Status) {
	if st := s.canMake(claim, node); st != nil {
		return nil, st
	}
	all, told := s.capacitiesFor(s.class(claim), claim)
	if !told {
		return nil, nil
	}
	if at := slices.IndexFunc(all, func(c *storagev1.CSIStorageCapacity) bool { return isOf(c, node) }); at >= 0 {
		return all[at], nil
	}
	return nil, noSpace
}

// canMake leaves out what is published of capacities.
func (s *Storage) canMake(claim *corev1.PersistentVolumeClaim, node *corev1.Node) *framework.Status {
	class := s.class(claim)
	if class == nil || class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner {
		return noVolumeToBind
	}
	if len(class.AllowedTopologies) > 0 && !inTopology(class.AllowedTopologies, node.Labels) {
		return noVolumeToBind
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if class.Provisioner == localvolume.Provisioner && localvolume.Fits(size.Value(), node) != nil {
		return noSpace
	}
	return nil
}

// inTopology tells whether one term matches the labels.
func inTopology(terms []corev1.TopologySelectorTerm, have map[string]string) bool {
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 && !slices.ContainsFunc(t.MatchLabelExpressions, func(r corev1.TopologySelectorLabelRequirement) bool {
			value, ok := have[r.Key]
			return !ok || !slices.Contains(r.Values, value)
		})
	})
}

// capacitiesFor are those of what a driver publishes that are large enough. told: it publishes, so where there is none there is no room; one
// that publishes none has always room.
func (s *Storage) capacitiesFor(class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim) (large []*storagev1.CSIStorageCapacity, told bool) {
	want, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return nil, false
	}
	driver, err := s.drivers.Get(class.Provisioner)
	if err != nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return nil, false
	}
	all, err := s.capacities.List(labels.Everything())
	if err != nil {
		return nil, false
	}
	return slices.DeleteFunc(all, func(c *storagev1.CSIStorageCapacity) bool {
		limit := c.Capacity
		if c.MaximumVolumeSize != nil {
			limit = c.MaximumVolumeSize
		}
		return c.StorageClassName != class.Name || limit == nil || limit.Cmp(want) < 0 || c.NodeTopology == nil
	}), true
}

// isOf tells whether a capacity is about a node.
func isOf(c *storagev1.CSIStorageCapacity, node *corev1.Node) bool {
	selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	return err == nil && selector.Matches(labels.Set(node.Labels))
}

// Reserve keeps what the pod's claims are to get on the node.
func (b *VolumeBinding) Reserve(_ context.Context, c *framework.CycleState, pod *state.PodInfo, node *state.NodeInfo) error {
	if b == nil || !b.Storage.known() {
		return nil
	}
	found, why := b.Storage.claimsOf(pod.Pod)
	switch {
	case why != "":
		return fmt.Errorf("volumes of pod %s: %s", pod.Key, why)
	case found == nil || len(found.late) == 0:
		return nil
	}
	if c != nil {
		if before, ok := volumesKey.Read(c); ok {
			found.snapshot = before.snapshot
		}
	}
	choices, st := found.chooseFromStock(node)
	if st != nil {
		return fmt.Errorf("volumes of pod %s: %s", pod.Key, strings.Join(st.Reasons, ", "))
	}
	b.Storage.assume(pod.Pod.UID, node.Name, choices)
	return nil
}

// Unreserve gives it back.
func (b *VolumeBinding) Unreserve(_ context.Context, _ *framework.CycleState, pod *state.PodInfo, _ string) {
	if b != nil {
		b.Storage.forget(pod.Pod.UID)
	}
}

// PreBindPreFlight tells whether a pod that has its node waits for volumes.
func (b *VolumeBinding) PreBindPreFlight(_ *framework.CycleState, pod *state.PodInfo, _ string) bool {
	return b != nil && len(b.Storage.plan(pod.Pod.UID)) > 0
}

// PreBind binds the claims and waits until they are.
func (b *VolumeBinding) PreBind(ctx context.Context, _ *framework.CycleState, pod *state.PodInfo, node string) error {
	if b == nil {
		return nil
	}
	choices := b.Storage.plan(pod.Pod.UID)
	if len(choices) == 0 {
		return nil
	}
	begin := time.Now()
	if err := b.Storage.write(ctx, node, choices); err != nil {
		return err
	}
	if err := b.Storage.await(ctx, node, choices, begin.Add(cmp.Or(b.Limit, bindLimit))); err != nil {
		return err
	}
	b.Storage.forget(pod.Pod.UID)
	return nil
}

// EventsToRegister names what may help: a node, a volume, a class, or one of the pod's own claims.
func (*VolumeBinding) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd | framework.NodeLabels | framework.Volumes | framework.Self}, {
		On: framework.Claims, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
			return e.Claim == nil || e.Claim.Namespace == pod.Pod.Namespace && slices.Contains(podkind.Claims(pod.Pod), e.Claim.Name)
		},
	}}
}

// SPDX-License-Identifier: Apache-2.0

package volumes

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

// Binding filters nodes that cannot have the pod's volumes. In PreBind it binds the pod's delayed claims
// (volumeBindingMode WaitForFirstConsumer): it writes spec.claimRef of volumes and the selected-node annotation of
// claims, and waits until they are bound.
type Binding struct {
	Storage *Storage
	// Limit is how long PreBind waits; 0: bindLimit, as in Kubernetes.
	Limit time.Duration
	// Rank scores the requested storage against the capacity, 0..MaxScore.
	Rank func(taken, offers int64) int64
}

// Plugin returns the descriptor.
func (b *Binding) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:             volumeBinding,
		PreFilter:        b.PreFilter,
		PreScore:         b.PreScore,
		Reserve:          b.Reserve,
		Unreserve:        b.Unreserve,
		PreBind:          b.PreBind,
		PreBindPreFlight: b.PreBindPreFlight,
		Events:           b.events(),
	}
}

const volumeBinding = "VolumeBinding"

// The messages are those of kube-scheduler.
var (
	noVolumeToBind = framework.NewStatus(volumeBinding, framework.Unresolvable,
		"node(s) didn't find available persistent volumes to bind")
	volumeAffinityConflict = framework.NewStatus(volumeBinding, framework.Unresolvable,
		"node(s) didn't match PersistentVolume's node affinity")
	noSpace = framework.NewStatus(volumeBinding, framework.Unresolvable,
		"node(s) did not have enough free storage")
	noSuchVolume = framework.NewStatus(volumeBinding, framework.Unresolvable,
		"node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
)

// claimsOfPod has a pod's claims, split into bound and delayed ones. It is the pod's filter.
type claimsOfPod struct {
	storage  *Storage
	snapshot *state.Snapshot
	bound    []*corev1.PersistentVolume      // of bound claims; nil: the volume does not exist
	delayed  []*corev1.PersistentVolumeClaim // to be bound once the node is chosen

	classes       []*claimClass // of the delayed claims, in their order, if FilterAll used freeVolumes; else nil
	capacityKnown atomic.Bool   // some node has a volume or a published capacity, so nodes can be scored
	mu            sync.Mutex
	chosen        map[string][]claimChoice // by node that fits
}

// PreFilter returns nil for pods without claims. It refuses pods with a claim that cannot be used now.
func (b *Binding) PreFilter(
	cycleState *framework.CycleState, pod *state.PodInfo, snapshot *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if !b.Storage.watching() || len(pod.Uses) == 0 {
		return framework.NodeFilter{}, nil
	}
	found, why := b.Storage.claimsOf(pod.Pod)
	if why != "" {
		return framework.NodeFilter{}, framework.NewStatus(volumeBinding, framework.Unresolvable, why)
	}
	if found == nil {
		return framework.NodeFilter{}, nil
	}
	found.snapshot = snapshot
	if len(found.delayed) == 0 {
		return found.described(), nil
	}
	if cycleState != nil {
		found.chosen = map[string][]claimChoice{}
		volumesKey.Write(cycleState, found)
	}
	return found.described(), nil
}

func (c *claimsOfPod) described() framework.NodeFilter {
	return framework.NodeFilter{Filter: c.Filter, FilterAll: c.FilterAll}
}

// claimsOf splits a pod's claims, or returns why the pod cannot be scheduled now. nil: the pod has no claims.
func (s *Storage) claimsOf(pod *corev1.Pod) (*claimsOfPod, string) {
	out := &claimsOfPod{storage: s}
	immediate := false
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		name := podkind.ClaimName(pod, v)
		if name == "" {
			continue
		}
		claim := s.claim(pod.Namespace, name)
		if slices.Contains(out.delayed, claim) {
			continue // a claim that two volumes of the pod name gets one volume
		}
		if why := unusable(pod, v, name, claim); why != "" {
			return nil, why
		}
		class := s.class(claim)
		switch _, done := claim.Annotations[volume.AnnBindCompleted]; {
		case done && claim.Spec.VolumeName != "":
			out.bound = append(out.bound, s.volume(claim.Spec.VolumeName))
		case class != nil && class.VolumeBindingMode != nil &&
			*class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && claim.Spec.VolumeName == "":
			out.delayed = append(out.delayed, claim)
		default:
			immediate = true
		}
	}
	switch {
	case immediate:
		return nil, "pod has unbound immediate PersistentVolumeClaims"
	case len(out.bound)+len(out.delayed) == 0:
		return nil, ""
	}
	// Small claims choose first, and each takes the smallest volume that matches. So the large volumes are left for the
	// large claims.
	slices.SortStableFunc(out.delayed, func(a, b *corev1.PersistentVolumeClaim) int {
		x := a.Spec.Resources.Requests[corev1.ResourceStorage]
		y := b.Spec.Resources.Requests[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	return out, ""
}

// unusable returns why the pod cannot use the claim now; empty: it can.
func unusable(pod *corev1.Pod, v *corev1.Volume, name string, claim *corev1.PersistentVolumeClaim) string {
	switch {
	case claim == nil && v.Ephemeral != nil:
		return fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case claim == nil:
		return fmt.Sprintf("persistentvolumeclaim %q not found", name)
	case claim.Status.Phase == corev1.ClaimLost:
		return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name,
			claim.Spec.VolumeName)
	case claim.DeletionTimestamp != nil:
		return fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
	case v.Ephemeral != nil:
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return err.Error()
		}
	}
	return ""
}

// Filter checks the node affinity of bound volumes, and that each delayed claim can be bound or provisioned on the
// node.
func (c *claimsOfPod) Filter(info *state.NodeInfo) *framework.Status {
	for _, v := range c.bound {
		if v == nil {
			return noSuchVolume
		}
		if volume.CheckNodeAffinity(v, info.Node.Labels) != nil {
			return volumeAffinityConflict
		}
	}
	if len(c.delayed) == 0 {
		return nil
	}
	choices, st := c.choose(info.Node)
	if st == nil && c.chosen != nil {
		c.remember(info.Name, choices)
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
		r := nodesOfVolume(c.snapshot, v)
		r.refuse(out, volumeAffinityConflict)
	}
	if len(c.delayed) > 0 {
		c.filterDelayed(out)
	}
}

// remember stores the choices for a node, for Score.
func (c *claimsOfPod) remember(node string, choices []claimChoice) {
	if slices.ContainsFunc(choices, func(o claimChoice) bool { return o.volume != nil || o.capacity != nil }) {
		c.capacityKnown.Store(true)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chosen[node] = choices
}

func (c *claimsOfPod) chosenOn(node string) ([]claimChoice, bool) {
	c.mu.Lock()
	choices, ok := c.chosen[node]
	c.mu.Unlock()
	if place := c.placeOf(node); !ok && place >= 0 {
		return c.choicesFromClasses(place), true
	}
	return choices, ok
}

// choose finds for each delayed claim a free volume on the node, or that a volume can be provisioned there.
func (c *claimsOfPod) choose(node *corev1.Node) ([]claimChoice, *framework.Status) {
	return c.chooseAmong(node, c.storage.unclaimed)
}

// chooseAmong is choose with the volumes that free returns for a claim.
func (c *claimsOfPod) chooseAmong(node *corev1.Node, free func(
	*corev1.PersistentVolumeClaim,
) []*corev1.PersistentVolume,
) ([]claimChoice, *framework.Status) {
	var out []claimChoice
	var mine map[string]*corev1.PersistentVolume // chosen for another claim of the pod
	for _, claim := range c.delayed {
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

func (s *Storage) chooseFor(claim *corev1.PersistentVolumeClaim, node *corev1.Node,
	mine map[string]*corev1.PersistentVolume,
	free func(*corev1.PersistentVolumeClaim) []*corev1.PersistentVolume,
) (claimChoice, *framework.Status) {
	chosen, under := s.placementOf(claim)
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
			return claimChoice{}, framework.NewStatus(volumeBinding, framework.Failed, err.Error())
		}
		if v != nil {
			return claimChoice{claim: claim, volume: v}, nil
		}
		if under {
			return claimChoice{}, volumeAffinityConflict
		}
	} else if selected != node.Name {
		return claimChoice{}, noVolumeToBind
	}
	capacity, st := s.canProvision(claim, node)
	return claimChoice{claim: claim, capacity: capacity}, st
}

// canProvision checks whether a volume for the claim can be provisioned on the node, and returns the capacity for it;
// nil: none is published.
func (s *Storage) canProvision(
	claim *corev1.PersistentVolumeClaim, node *corev1.Node,
) (*storagev1.CSIStorageCapacity, *framework.Status) {
	if st := s.canProvisionByClass(claim, node); st != nil {
		return nil, st
	}
	all, published := s.capacitiesFor(s.class(claim), claim)
	if !published {
		return nil, nil
	}
	if at := slices.IndexFunc(all, func(c *storagev1.CSIStorageCapacity) bool {
		return capacityCovers(c, node)
	}); at >= 0 {
		return all[at], nil
	}
	return nil, noSpace
}

// canProvisionByClass is canProvision without published capacities.
func (s *Storage) canProvisionByClass(claim *corev1.PersistentVolumeClaim, node *corev1.Node) *framework.Status {
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

// inTopology reports whether a term matches the labels.
func inTopology(terms []corev1.TopologySelectorTerm, have map[string]string) bool {
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 && !slices.ContainsFunc(t.MatchLabelExpressions, func(
			r corev1.TopologySelectorLabelRequirement,
		) bool {
			value, ok := have[r.Key]
			return !ok || !slices.Contains(r.Values, value)
		})
	})
}

// capacitiesFor returns the published capacities that are large enough for a claim. published: the driver publishes
// capacities, so a node without one has no space. Without published capacities every node has space.
func (s *Storage) capacitiesFor(
	class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim,
) (large []*storagev1.CSIStorageCapacity, published bool) {
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

// capacityCovers reports whether a node is in the topology of a capacity.
func capacityCovers(c *storagev1.CSIStorageCapacity, node *corev1.Node) bool {
	selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	return err == nil && selector.Matches(labels.Set(node.Labels))
}

// Reserve chooses volumes for the pod's delayed claims on the node, and assumes these bindings.
func (b *Binding) Reserve(
	_ context.Context, cycleState *framework.CycleState, pod *state.PodInfo, node *state.NodeInfo,
) error {
	if !b.Storage.watching() {
		return nil
	}
	found, why := b.Storage.claimsOf(pod.Pod)
	switch {
	case why != "":
		return fmt.Errorf("volumes of pod %s: %s", pod.Key, why)
	case found == nil || len(found.delayed) == 0:
		return nil
	}
	if cycleState != nil {
		if before, ok := volumesKey.Read(cycleState); ok {
			found.snapshot = before.snapshot
		}
	}
	choices, st := found.chooseForReserve(node)
	if st != nil {
		return fmt.Errorf("volumes of pod %s: %s", pod.Key, strings.Join(st.Reasons, ", "))
	}
	b.Storage.assume(pod.Pod.UID, node.Name, choices)
	return nil
}

// Unreserve forgets the assumed bindings.
func (b *Binding) Unreserve(_ context.Context, _ *framework.CycleState, pod *state.PodInfo, _ string) {
	b.Storage.forget(pod.Pod.UID)
}

// PreBindPreFlight reports whether the pod has claims that PreBind must bind.
func (b *Binding) PreBindPreFlight(_ *framework.CycleState, pod *state.PodInfo, _ string) bool {
	return len(b.Storage.assumedChoices(pod.Pod.UID)) > 0
}

// PreBind writes the assumed bindings and waits until the claims are bound.
func (b *Binding) PreBind(ctx context.Context, _ *framework.CycleState, pod *state.PodInfo, node string) error {
	choices := b.Storage.assumedChoices(pod.Pod.UID)
	if len(choices) == 0 {
		return nil
	}
	begin := time.Now()
	if err := b.Storage.write(ctx, node, choices); err != nil {
		return err
	}
	if err := b.Storage.waitUntilBound(ctx, node, choices, begin.Add(cmp.Or(b.Limit, bindLimit))); err != nil {
		return err
	}
	b.Storage.forget(pod.Pod.UID)
	return nil
}

// events names what may help: a node, a volume, a class or one of the pod's claims.
func (*Binding) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{Kinds: framework.NodeAdd | framework.NodeLabels | framework.Storage | framework.UnscheduledPodUpdate},
		{
			Kinds: framework.PersistentVolumeClaims,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				return e.Claim == nil || e.Claim.Namespace == pod.Pod.Namespace && slices.Contains(
					podkind.Claims(pod.Pod),
					e.Claim.Name)
			},
		},
	}
}

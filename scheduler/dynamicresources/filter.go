// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// What users know from events.
var (
	notOnNode = refuse("resourceclaim not available on the node")
	notAll    = refuse("cannot allocate all claims")
	tooLong   = refuse("timed out trying to allocate devices")
	searching = refuse("the search for devices takes long and goes on beside other pods")
)

// shortest is for how long a search is worth beginning.
const shortest = time.Millisecond

var key = framework.NewKey[*podClaims](Name)

// podClaims are a pod's claims during one attempt, and what was found out about them.
type podClaims struct {
	plugin    *Plugin
	pod       *corev1.Pod
	claims    []*podClaim
	free      []*resourcev1.ResourceClaim // those of claims that have no devices yet
	extended  *extended                   // nil: there is none
	planned   *planned                    // set by Reserve
	allocator structured.Allocator        // nil: all have
	slices    []*resourcev1.ResourceSlice
	view      view
	until     time.Time // when the search is given up
	lane      *Lane     // to which it is left then; nil: there is none
	earlier   *answer   // the lane's; nil: this pod's search is new

	mu     sync.Mutex
	found  map[string][]resourcev1.AllocationResult // by node, as wants
	idle   map[*podClaim]bool                       // whose devices were missing on a node
	broken *framework.Status                        // no search can succeed

	explained time.Time // until when explaining may take time; zero: it has not begun
	anew      structured.Allocator
}

// podClaim is one claim. The plugin replaces it as it writes.
type podClaim struct {
	claim   *resourcev1.ResourceClaim
	nodes   *nodeaffinity.NodeSelector   // where its devices are; nil: everywhere, or it has none
	plan    *resourcev1.AllocationResult // set by Reserve
	written bool                         // by this attempt
	unsure  bool                         // it may be written: the answer was lost
}

// PreFilter has nothing to say about pods without claims.
func (p *Plugin) PreFilter(c *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if len(pod.Pod.Spec.ResourceClaims) == 0 && len(pod.Request.Scalar) == 0 {
		return nil, nil
	}
	extended := p.extendedOf(pod)
	if len(pod.Pod.Spec.ResourceClaims) == 0 && extended == nil {
		return nil, nil
	}
	if !p.Known.watching() {
		return nil, refuse("the API server has no resource claims")
	}
	s := &podClaims{
		plugin: p, pod: pod.Pod, extended: extended, found: map[string][]resourcev1.AllocationResult{}, idle: map[*podClaim]bool{},
	}
	seen := map[types.UID]bool{}
	if err := p.claimsOf(pod.Pod, func(c *resourcev1.ResourceClaim) {
		if !seen[c.UID] {
			seen[c.UID] = true
			s.claims = append(s.claims, &podClaim{claim: c})
		}
	}); err != nil {
		return nil, refuse(err.Error())
	}
	if len(s.claims) == 0 && extended == nil {
		return nil, nil
	}
	for _, c := range s.claims {
		if st := p.look(s, c); st != nil {
			return nil, st
		}
	}
	if st := p.prepare(s); st != nil {
		return nil, st
	}
	key.Write(c, s)
	return s, nil
}

// look sorts a claim: its devices are known, or have to be found.
func (p *Plugin) look(s *podClaims, c *podClaim) *framework.Status {
	a := c.claim.Status.Allocation
	switch {
	case a != nil && !resourceclaim.CanBeReserved(c.claim) && !resourceclaim.IsReservedForPod(s.pod, c.claim, false):
		return refuse("resourceclaim in use")
	case a != nil && a.NodeSelector != nil:
		nodes, err := nodeaffinity.NewNodeSelector(a.NodeSelector)
		if err != nil {
			return refuse(fmt.Sprintf("resourceclaim %q: nodes of its devices: %v", c.claim.Name, err))
		}
		c.nodes = nodes
		return nil
	case a != nil:
		return nil
	case p.Known.isPlanned(c.claim.UID):
		return refuse(fmt.Sprintf("resource claim %s/%s is in the process of being allocated", c.claim.Namespace, c.claim.Name))
	}
	s.free = append(s.free, c.claim)
	return p.classes(c.claim)
}

// classes checks that the classes exist that a claim's requests name.
func (p *Plugin) classes(claim *resourcev1.ResourceClaim) *framework.Status {
	missing := func(request, class string) *framework.Status {
		if _, err := p.Known.Get(class); apierrors.IsNotFound(err) {
			return refuse(fmt.Sprintf("request %s: device class %s does not exist", request, class))
		}
		return nil
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly == nil && len(r.FirstAvailable) == 0 {
			return refuse(fmt.Sprintf("resource claim %s/%s, request %s: unknown request type", claim.Namespace, claim.Name, r.Name))
		}
		if r.Exactly != nil {
			if st := missing(r.Name, r.Exactly.DeviceClassName); st != nil {
				return st
			}
		}
		for j := range r.FirstAvailable {
			sub := &r.FirstAvailable[j]
			if st := missing(resourceclaim.CreateSubRequestRef(r.Name, sub.Name), sub.DeviceClassName); st != nil {
				return st
			}
		}
	}
	return nil
}

// prepare gets ready for the search.
func (p *Plugin) prepare(s *podClaims) *framework.Status {
	if len(s.free) == 0 && s.extended == nil {
		return nil
	}
	within := p.Filter
	if p.Lane.isOpen() {
		s.lane, s.earlier = p.Lane, p.Lane.recall(s)
		within = min(within, p.Lane.budget(p.InLoop))
	}
	s.until, s.view = time.Now().Add(within), p.Known.view()
	var err error
	if s.slices, err = p.Known.allSlices(); err == nil {
		s.allocator, err = structured.NewAllocator(context.Background(), features, s.view.taken, p.Known, s.slices, p.cel)
	}
	if err != nil {
		return framework.Refuse(Name, framework.Failed, err.Error())
	}
	return nil
}

// Filter looks whether the pod's devices are on the node, or can be found there.
func (s *podClaims) Filter(n *state.NodeInfo) *framework.Status {
	fits := true
	for _, c := range s.claims {
		if c.claim.Status.Allocation == nil {
			continue
		}
		if c.nodes != nil && !c.nodes.Match(n.Node) || s.plugin.lost(c.claim) {
			fits = false
			s.mu.Lock()
			s.idle[c] = true
			s.mu.Unlock()
		}
	}
	switch {
	case !fits:
		return notOnNode
	case s.extended != nil && s.extended.stale != nil:
		return staleClaim
	case s.allocator == nil || len(s.wants(n.Node)) == 0:
		return nil
	}
	return s.search(n)
}

// search finds devices on the node for the claims that have none. A node gets half of the time that is left, so that a difficult one leaves
// some to the others and all together keep to the limit: the scheduler has other pods. What can succeed nowhere is tried once.
func (s *podClaims) search(n *state.NodeInfo) *framework.Status {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return broken
	}
	if s.earlier != nil {
		found, no := s.earlier.of(n.Node, s.view)
		switch {
		case no != nil:
			return no
		case found == nil:
			return s.lane.want(s, n.Node)
		}
		s.keep(n, found)
		return nil
	}
	left := time.Until(s.until)
	if left < shortest {
		return s.ranOut(n)
	}
	found, no, everywhere := allocate(context.Background(), s.allocator, n.Node, s.wants(n.Node), left/2)
	switch {
	case no == tooLong:
		return s.ranOut(n)
	case no != nil && everywhere:
		return s.giveUp(no)
	case no != nil:
		return no
	}
	s.keep(n, found)
	return nil
}

func (s *podClaims) keep(n *state.NodeInfo, found []resourcev1.AllocationResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[n.Name] = found
}

// ranOut is of a node that there was not time enough for.
func (s *podClaims) ranOut(n *state.NodeInfo) *framework.Status {
	if s.lane == nil {
		return tooLong
	}
	return s.lane.want(s, n.Node)
}

// allocate finds devices on a node for all claims, or says why there are none, and whether that is so on every node.
func allocate(ctx context.Context, by structured.Allocator, n *corev1.Node, claims []*resourcev1.ResourceClaim, within time.Duration) (
	found []resourcev1.AllocationResult, no *framework.Status, everywhere bool,
) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	found, err := by.Allocate(ctx, n, claims)
	switch {
	case ctx.Err() != nil:
		return nil, tooLong, false
	case err != nil:
		return nil, refuse(err.Error()), !errors.Is(err, structured.ErrFailedAllocationOnNode)
	case len(found) != len(claims):
		return nil, notAll, false
	}
	return found, nil, false
}

func (s *podClaims) giveUp(why *framework.Status) *framework.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = why
	}
	return s.broken
}

// PreScore has an opinion where requests have alternatives.
func (*Plugin) PreScore(c *framework.CycleState, _ *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	s, ok := key.Read(c)
	if !ok || !slices.ContainsFunc(s.claims, func(c *podClaim) bool {
		return slices.ContainsFunc(c.claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return len(r.FirstAvailable) > 0 })
	}) {
		return nil
	}
	return s
}

// Score prefers the node where the alternatives that were found come first in their requests' lists.
func (s *podClaims) Score(n *state.NodeInfo) int64 {
	s.mu.Lock()
	found := s.found[n.Name]
	s.mu.Unlock()
	var score int64
	next := 0
	for _, c := range s.claims {
		a := c.claim.Status.Allocation
		if a == nil {
			if next == len(found) {
				return 0
			}
			a = &found[next]
			next++
		}
		score += rank(&c.claim.Spec, a)
	}
	return score
}

func rank(spec *resourcev1.ResourceClaimSpec, a *resourcev1.AllocationResult) (score int64) {
	chosen := map[string]bool{}
	for i := range a.Devices.Results {
		chosen[a.Devices.Results[i].Request] = true
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		for j := range r.FirstAvailable {
			if chosen[resourceclaim.CreateSubRequestRef(r.Name, r.FirstAvailable[j].Name)] {
				score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - j)
			}
		}
	}
	return score
}

// Normalize makes the best score 100.
func (*podClaims) Normalize(scores []int64) { framework.NormalizeByMax(scores, false) }

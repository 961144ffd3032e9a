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

// The statuses of refused nodes. Except for searching, the messages are kube-scheduler's.
var (
	notOnNode      = refuse("resourceclaim not available on the node")
	cannotAllocate = refuse("cannot allocate all claims")
	timedOut       = refuse("timed out trying to allocate devices")
	searching      = refuse("the search for devices takes long and continues while other pods are scheduled")
)

// minSearch: with less time left, no search is started.
const minSearch = time.Millisecond

var key = framework.NewKey[*podClaims](Name)

// podClaims has a pod's claims and the results of the search, for one attempt. It is the pod's filter and scorer.
type podClaims struct {
	plugin        *Plugin
	pod           *corev1.Pod
	claims        []*podClaim
	unallocated   []*resourcev1.ResourceClaim // those of claims without an allocation
	extended      *extended                   // nil: no extended resources by devices
	extendedPlan  *extendedPlan               // set by Reserve
	allocator     structured.Allocator        // nil: all claims are allocated
	slices        []*resourcev1.ResourceSlice
	view          view
	deadline      time.Time     // of the search in this cycle
	searcher      *Searcher     // continues the search after the deadline; nil: nothing does
	earlierResult *searchResult // of searcher; nil: it has none for this pod

	mu       sync.Mutex
	found    map[string][]resourcev1.AllocationResult // by node, in the order of wants
	unusable map[*podClaim]bool                       // allocated claims whose devices a node cannot use

	explainDeadline time.Time // zero: no node was explained yet
	emptyAllocator  structured.Allocator
}

// podClaim is one claim. PreBind replaces claim with the written version.
type podClaim struct {
	claim *resourcev1.ResourceClaim
	// shared is the allocation that another pod of the group will write: claim has it, and the server not yet. nil:
	// none
	shared       *resourcev1.AllocationResult
	nodes        *nodeaffinity.NodeSelector   // of the allocation; nil: all nodes, or not allocated
	plan         *resourcev1.AllocationResult // set by Reserve
	written      bool                         // by this attempt
	maybeWritten bool                         // the write failed without an answer
}

// PreFilter returns nil for pods without claims. It refuses pods whose claims cannot be used or allocated now.
func (p *Plugin) PreFilter(
	cycleState *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if len(pod.Pod.Spec.ResourceClaims) == 0 && len(pod.Request.Scalar) == 0 {
		return framework.NodeFilter{}, nil
	}
	extended := p.extendedOf(pod)
	if len(pod.Pod.Spec.ResourceClaims) == 0 && extended == nil {
		return framework.NodeFilter{}, nil
	}
	if !p.Tracker.watching() {
		return framework.NodeFilter{}, refuse("the API server has no resource claims")
	}
	s := &podClaims{
		plugin:   p,
		pod:      pod.Pod,
		extended: extended,
		found:    map[string][]resourcev1.AllocationResult{},
		unusable: map[*podClaim]bool{},
	}
	seen := map[types.UID]bool{}
	if err := p.claimsOf(pod.Pod, func(c *resourcev1.ResourceClaim) {
		if !seen[c.UID] {
			seen[c.UID] = true
			s.claims = append(s.claims, &podClaim{claim: c})
		}
	}); err != nil {
		return framework.NodeFilter{}, refuse(err.Error())
	}
	if len(s.claims) == 0 && extended == nil {
		return framework.NodeFilter{}, nil
	}
	for _, c := range s.claims {
		if st := p.classify(s, c); st != nil {
			return framework.NodeFilter{}, st
		}
	}
	if st := p.prepare(s); st != nil {
		return framework.NodeFilter{}, st
	}
	key.Write(cycleState, s)
	return framework.NodeFilter{Filter: s.Filter, Explain: s.Explain}, nil
}

// classify checks a claim, and adds it to s.unallocated if it has no allocation.
func (p *Plugin) classify(s *podClaims, c *podClaim) *framework.Status {
	group, _ := state.GroupOf(s.pod)
	if pending := p.Tracker.pendingIn(group, c.claim.UID); pending != nil && c.claim.Status.Allocation == nil {
		c.shared = pending
		c.claim = c.claim.DeepCopy()
		c.claim.Status.Allocation = pending
	}
	result := c.claim.Status.Allocation
	switch {
	case result != nil && !resourceclaim.CanBeReserved(c.claim) && !resourceclaim.IsReservedForPod(s.pod, c.claim,
		false):
		return refuse("resourceclaim in use")
	case result != nil && result.NodeSelector != nil:
		nodes, err := nodeaffinity.NewNodeSelector(result.NodeSelector)
		if err != nil {
			return refuse(fmt.Sprintf("resourceclaim %q: nodes of its devices: %v", c.claim.Name, err))
		}
		c.nodes = nodes
		return nil
	case result != nil:
		return nil
	case p.Tracker.isInFlight(c.claim.UID):
		return refuse(fmt.Sprintf("resource claim %s/%s is in the process of being allocated", c.claim.Namespace,
			c.claim.Name))
	}
	s.unallocated = append(s.unallocated, c.claim)
	return p.checkClasses(c.claim)
}

// checkClasses refuses a claim that names a missing DeviceClass.
func (p *Plugin) checkClasses(claim *resourcev1.ResourceClaim) *framework.Status {
	missing := func(request, class string) *framework.Status {
		if _, err := p.Tracker.Get(class); apierrors.IsNotFound(err) {
			return refuse(fmt.Sprintf("request %s: device class %s does not exist", request, class))
		}
		return nil
	}
	for i := range claim.Spec.Devices.Requests {
		deviceRequest := &claim.Spec.Devices.Requests[i]
		if deviceRequest.Exactly == nil && len(deviceRequest.FirstAvailable) == 0 {
			return refuse(fmt.Sprintf("resource claim %s/%s, request %s: unknown request type", claim.Namespace,
				claim.Name, deviceRequest.Name))
		}
		if deviceRequest.Exactly != nil {
			if st := missing(deviceRequest.Name, deviceRequest.Exactly.DeviceClassName); st != nil {
				return st
			}
		}
		for j := range deviceRequest.FirstAvailable {
			sub := &deviceRequest.FirstAvailable[j]
			if st := missing(resourceclaim.CreateSubRequestRef(deviceRequest.Name, sub.Name),
				sub.DeviceClassName); st != nil {
				return st
			}
		}
	}
	return nil
}

// prepare sets the deadline and the allocator.
func (p *Plugin) prepare(s *podClaims) *framework.Status {
	if len(s.unallocated) == 0 && s.extended == nil {
		return nil
	}
	within := p.Filter
	if p.Searcher.isRunning() {
		s.searcher = p.Searcher
		s.earlierResult = p.Searcher.lastResult(s)
		within = min(within, p.Searcher.budget(p.InCycle))
	}
	s.deadline = time.Now().Add(within)
	s.view = p.Tracker.view()
	var err error
	if s.slices, err = p.Tracker.allSlices(); err == nil {
		s.allocator, err = structured.NewAllocator(context.Background(), features, s.view.taken, p.Tracker, s.slices,
			p.cel)
	}
	if err != nil {
		return framework.NewStatus(Name, framework.Failed, err.Error())
	}
	return nil
}

// Filter checks that the node can use the allocated devices, and searches devices for the other claims.
func (s *podClaims) Filter(info *state.NodeInfo) *framework.Status {
	fits := true
	for _, c := range s.claims {
		if c.claim.Status.Allocation == nil {
			continue
		}
		if c.nodes != nil && !c.nodes.Match(info.Node) || s.plugin.neverReady(c.claim) {
			fits = false
			s.mu.Lock()
			s.unusable[c] = true
			s.mu.Unlock()
		}
	}
	switch {
	case !fits:
		return notOnNode
	case s.extended != nil && s.extended.stale != nil:
		return staleClaim
	case s.allocator == nil || len(s.wants(info.Node)) == 0:
		return nil
	}
	return s.search(info)
}

// search allocates devices on the node for the unallocated claims. Each node gets half of the time that is left, so
// that a difficult node leaves time for the others.
func (s *podClaims) search(info *state.NodeInfo) *framework.Status {
	if s.earlierResult != nil {
		found, no := s.earlierResult.validFor(info.Node, s.view)
		switch {
		case no != nil:
			return no
		case found == nil:
			return s.searcher.enqueue(s, info.Node)
		}
		s.remember(info, found)
		return nil
	}
	left := time.Until(s.deadline)
	if left < minSearch {
		return s.outOfTime(info)
	}
	found, no := allocate(context.Background(), s.allocator, info.Node, s.wants(info.Node), left/2)
	switch {
	case no == timedOut:
		return s.outOfTime(info)
	case no != nil:
		return no
	}
	s.remember(info, found)
	return nil
}

// remember stores the allocation for a node, for Score and Reserve.
func (s *podClaims) remember(n *state.NodeInfo, found []resourcev1.AllocationResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[n.Name] = found
}

// outOfTime returns the status of a node without a result, and passes the node to the searcher.
func (s *podClaims) outOfTime(n *state.NodeInfo) *framework.Status {
	if s.searcher == nil {
		return timedOut
	}
	return s.searcher.enqueue(s, n.Node)
}

// allocate finds devices on a node for all claims, or returns why not. The status is Failed, which ends the attempt, if
// something is wrong with a claim or class, for instance if its selector cannot be evaluated: nodes that were feasible
// do not hide the mistake.
func allocate(
	ctx context.Context, by structured.Allocator, n *corev1.Node, claims []*resourcev1.ResourceClaim,
	within time.Duration,
) ([]resourcev1.AllocationResult, *framework.Status) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	found, err := by.Allocate(ctx, n, claims)
	switch {
	case ctx.Err() != nil:
		return nil, timedOut
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, refuse(err.Error())
	case err != nil:
		return nil, framework.NewStatus(Name, framework.Failed, err.Error())
	case len(found) != len(claims):
		return nil, cannotAllocate
	}
	return found, nil
}

// PreScore returns nil unless a request has firstAvailable alternatives.
func (*Plugin) PreScore(
	c *framework.CycleState, _ *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	s, ok := key.Read(c)
	if !ok || !slices.ContainsFunc(s.claims, func(c *podClaim) bool {
		return slices.ContainsFunc(c.claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool {
			return len(r.FirstAvailable) > 0
		})
	}) {
		return framework.NodeScorer{}
	}
	return framework.NodeScorer{Score: s.Score, Normalize: s.Normalize}
}

// Score prefers nodes with alternatives that are early in the lists of their requests.
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

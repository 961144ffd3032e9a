// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Distances of Explain.
const (
	near     = 1  // somebody else has the devices
	hopeless = 10 // there are none
)

// Explain names the request that the node cannot meet, and whether its devices are taken or are not there.
func (s *podClaims) Explain(_ *state.PodInfo, n *state.NodeInfo, st *framework.Status) (short, hint string, distance float64) {
	if st == notOnNode {
		for _, c := range s.claims {
			if c.nodes != nil && !c.nodes.Match(n.Node) {
				return fmt.Sprintf("claim %s: its devices are %s", c.claim.Name, whereIs(c.claim.Status.Allocation.NodeSelector)), "", hopeless
			}
		}
		return "devices of the pod's claims have not become ready", "", hopeless
	}
	if st != notAll {
		return "", "", hopeless
	}
	if s.explained.IsZero() {
		s.explained = time.Now().Add(s.plugin.Config.Explain)
	}
	for _, c := range s.wants(n.Node) {
		if s.fits(s.allocator, n.Node, c) {
			continue
		}
		return s.missing(n, c)
	}
	if !time.Now().Before(s.explained) {
		return "", "", hopeless
	}
	return "each of the pod's claims can be met, but not together", "", hopeless
}

// missing says what of one claim cannot be met.
func (s *podClaims) missing(n *state.NodeInfo, c *resourcev1.ResourceClaim) (short, hint string, distance float64) {
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		one := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID}}
		one.Spec.Devices.Requests = []resourcev1.DeviceRequest{*r}
		if s.fits(s.allocator, n.Node, one) {
			continue
		}
		free := s.fits(s.untaken(), n.Node, one)
		if !time.Now().Before(s.explained) {
			break
		}
		what := fmt.Sprintf("claim %s, request %s: asks for %s", c.Name, r.Name, asks(r))
		if free {
			return what + ", which other claims have", fmt.Sprintf("fits on %s when a claim gives back %s", n.Name, asks(r)), near
		}
		return what + ", the node has no such", "", hopeless
	}
	if !time.Now().Before(s.explained) {
		return "", "", hopeless
	}
	return fmt.Sprintf("claim %s: each of its requests can be met, but not together", c.Name), "", near
}

// untaken searches as if no claim had devices.
func (s *podClaims) untaken() structured.Allocator {
	if s.anew == nil {
		none := structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		}
		if a, err := structured.NewAllocator(context.Background(), features, none, s.plugin.Known, s.slices, s.plugin.cel); err == nil {
			s.anew = a
		}
	}
	return s.anew
}

func (s *podClaims) fits(a structured.Allocator, n *corev1.Node, c *resourcev1.ResourceClaim) bool {
	if a == nil {
		return false
	}
	ctx, cancel := context.WithDeadline(context.Background(), s.explained)
	defer cancel()
	found, err := a.Allocate(ctx, n, []*resourcev1.ResourceClaim{c})
	return err == nil && len(found) == 1
}

// asks says what a request is for.
func asks(r *resourcev1.DeviceRequest) string {
	if r.Exactly == nil {
		var of []string
		for i := range r.FirstAvailable {
			of = append(of, several(r.FirstAvailable[i].AllocationMode, r.FirstAvailable[i].Count, r.FirstAvailable[i].DeviceClassName, len(r.FirstAvailable[i].Selectors)))
		}
		return "one of: " + strings.Join(of, ", ")
	}
	return several(r.Exactly.AllocationMode, r.Exactly.Count, r.Exactly.DeviceClassName, len(r.Exactly.Selectors))
}

func several(mode resourcev1.DeviceAllocationMode, count int64, class string, selectors int) string {
	what := fmt.Sprintf("%d of class %s", max(count, 1), class)
	if mode == resourcev1.DeviceAllocationModeAll {
		what = "all of class " + class
	}
	if selectors > 0 {
		what += " with a selector"
	}
	return what
}

// whereIs names the nodes of a selector as the allocator writes them: one by name, or else all that it matches.
func whereIs(s *corev1.NodeSelector) string {
	if len(s.NodeSelectorTerms) == 1 {
		t := &s.NodeSelectorTerms[0]
		if len(t.MatchFields) == 1 && len(t.MatchExpressions) == 0 && len(t.MatchFields[0].Values) == 1 {
			return "on node " + t.MatchFields[0].Values[0]
		}
	}
	return "on other nodes"
}

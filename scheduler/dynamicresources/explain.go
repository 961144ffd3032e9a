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
	takenDistance   = 1  // other claims have the devices
	missingDistance = 10 // the node has no such devices
)

// Explain names the request that the node cannot meet, and whether its devices are allocated or do not exist.
func (s *podClaims) Explain(
	_ *state.PodInfo, info *state.NodeInfo, st *framework.Status,
) (short, hint string, distance float64) {
	if st == notOnNode {
		for _, c := range s.claims {
			if c.nodes != nil && !c.nodes.Match(info.Node) {
				return fmt.Sprintf("claim %s: its devices are %s", c.claim.Name,
					describeNodes(c.claim.Status.Allocation.NodeSelector)), "", missingDistance
			}
		}
		return "devices of the pod's claims have not become ready", "", missingDistance
	}
	if st != cannotAllocate {
		return "", "", missingDistance
	}
	if s.explainDeadline.IsZero() {
		s.explainDeadline = time.Now().Add(s.plugin.Explain)
	}
	for _, c := range s.wants(info.Node) {
		if s.fits(s.allocator, info.Node, c) {
			continue
		}
		return s.explainClaim(info, c)
	}
	if !time.Now().Before(s.explainDeadline) {
		return "", "", missingDistance
	}
	return "each of the pod's claims can be met, but not together", "", missingDistance
}

// explainClaim names the request of a claim that the node cannot meet.
func (s *podClaims) explainClaim(
	info *state.NodeInfo, resourceClaim *resourcev1.ResourceClaim,
) (short, hint string, distance float64) {
	for i := range resourceClaim.Spec.Devices.Requests {
		deviceRequest := &resourceClaim.Spec.Devices.Requests[i]
		one := &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: resourceClaim.Namespace,
				Name:      resourceClaim.Name,
				UID:       resourceClaim.UID,
			},
		}
		one.Spec.Devices.Requests = []resourcev1.DeviceRequest{*deviceRequest}
		if s.fits(s.allocator, info.Node, one) {
			continue
		}
		free := s.fits(s.allocatorWithoutClaims(), info.Node, one)
		if !time.Now().Before(s.explainDeadline) {
			break
		}
		what := fmt.Sprintf("claim %s, request %s: asks for %s", resourceClaim.Name, deviceRequest.Name,
			describeRequest(deviceRequest))
		if free {
			return what + ", which other claims have", fmt.Sprintf("fits on %s when a claim gives back %s", info.Name,
				describeRequest(deviceRequest)), takenDistance
		}
		return what + ", the node has no such", "", missingDistance
	}
	if !time.Now().Before(s.explainDeadline) {
		return "", "", missingDistance
	}
	return fmt.Sprintf("claim %s: each of its requests can be met, but not together", resourceClaim.Name), "",
		takenDistance
}

// allocatorWithoutClaims returns an allocator for which all devices are free.
func (s *podClaims) allocatorWithoutClaims() structured.Allocator {
	if s.emptyAllocator == nil {
		none := structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		}
		if a, err := structured.NewAllocator(context.Background(), features, none, s.plugin.Tracker, s.slices,
			s.plugin.cel); err == nil {
			s.emptyAllocator = a
		}
	}
	return s.emptyAllocator
}

func (s *podClaims) fits(a structured.Allocator, n *corev1.Node, c *resourcev1.ResourceClaim) bool {
	if a == nil {
		return false
	}
	ctx, cancel := context.WithDeadline(context.Background(), s.explainDeadline)
	defer cancel()
	found, err := a.Allocate(ctx, n, []*resourcev1.ResourceClaim{c})
	return err == nil && len(found) == 1
}

// describeRequest formats a request.
func describeRequest(r *resourcev1.DeviceRequest) string {
	if r.Exactly == nil {
		var of []string
		for i := range r.FirstAvailable {
			of = append(of, describeDevices(r.FirstAvailable[i].AllocationMode, r.FirstAvailable[i].Count,
				r.FirstAvailable[i].DeviceClassName, len(r.FirstAvailable[i].Selectors)))
		}
		return "one of: " + strings.Join(of, ", ")
	}
	return describeDevices(r.Exactly.AllocationMode, r.Exactly.Count, r.Exactly.DeviceClassName,
		len(r.Exactly.Selectors))
}

func describeDevices(mode resourcev1.DeviceAllocationMode, count int64, class string, selectors int) string {
	what := fmt.Sprintf("%d of class %s", max(count, 1), class)
	if mode == resourcev1.DeviceAllocationModeAll {
		what = "all of class " + class
	}
	if selectors > 0 {
		what += " with a selector"
	}
	return what
}

// describeNodes formats the node selector of an allocation.
func describeNodes(s *corev1.NodeSelector) string {
	if len(s.NodeSelectorTerms) == 1 {
		t := &s.NodeSelectorTerms[0]
		if len(t.MatchFields) == 1 && len(t.MatchExpressions) == 0 && len(t.MatchFields[0].Values) == 1 {
			return "on node " + t.MatchFields[0].Values[0]
		}
	}
	return "on other nodes"
}

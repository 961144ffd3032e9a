// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/event"
	"keelson/proxy/services"
)

// emitMarks emits marks of the pods that became reachable, and events for frontends that are not served.
func (p *Proxy) emitMarks(b *changeBatch, c services.Change, begun time.Time, full bool) {
	for n, after := range c.After {
		before := c.Before[n]
		p.reportRefused(n, before, after)
		p.reportOff(n, before, after)
		at := begun
		if s, ok := b.services[n]; ok && !full {
			at = s.at
		}
		p.reachable(n, before, after, at)
	}
}

// reachable emits a mark for each pod of this node that became an endpoint of the Service. Other nodes emit those of
// their pods.
func (p *Proxy) reachable(namespacedName types.NamespacedName, before, after *services.Part, at time.Time) {
	had := map[types.UID]bool{}
	if before != nil {
		for _, port := range before.Ports {
			for _, e := range port.Endpoints {
				had[e.Pod.UID] = true
			}
		}
	}
	took := time.Since(at)
	for _, port := range after.Ports {
		for _, endpoint := range port.Endpoints {
			if !endpoint.Local || endpoint.Pod.UID == "" || had[endpoint.Pod.UID] {
				continue
			}
			had[endpoint.Pod.UID] = true // one mark for a pod, not for each port
			p.cfg.Marks.Emit(event.Event{
				Step:      event.StepReachable,
				Component: "proxy " + p.cfg.NodeName,
				At:        at,
				Took:      took,
				Subject: event.Subject{
					Resource:  "pods",
					Namespace: endpoint.Pod.Namespace,
					Name:      endpoint.Pod.Name,
					UID:       string(endpoint.Pod.UID),
				},
				Detail: &event.Reachable{
					Service:  namespacedName.Name,
					Node:     p.cfg.NodeName,
					Front:    port.Fronts[0].String(),
					Endpoint: endpoint.Addr.String(),
				},
			})
		}
	}
}

// gateOff is why spec.externalIPs are not served.
const gateOff = "the feature gate AllowServiceExternalIPs is off"

// reportOff emits an event for external IPs that are not served because of the feature gate.
func (p *Proxy) reportOff(namespacedName types.NamespacedName, before, after *services.Part) {
	svc := p.tracker.service(namespacedName)
	if svc == nil || !offIsNew(before, after) {
		return
	}
	p.events.Event(svc, corev1.EventTypeWarning, "ExternalIPsOff", fmt.Sprintf("node %s does not serve "+
		"spec.externalIPs: %s: use type LoadBalancer, or turn the gate on at each node", p.cfg.NodeName, gateOff))
}

// offIsNew reports whether a node has something to say about external IPs that it does not serve. Only nodes with
// endpoints of the Service do: otherwise each node of the cluster would write an event.
func offIsNew(before, after *services.Part) bool {
	off := func(part *services.Part) bool {
		return part != nil && len(part.Off) > 0 && slices.ContainsFunc(part.Ports, func(port services.Port) bool {
			return slices.ContainsFunc(port.Endpoints, func(e services.Endpoint) bool { return e.Local })
		})
	}
	return off(after) && (!off(before) || !slices.Equal(before.Off, after.Off))
}

// reportRefused emits an event for each frontend that is in use by something else.
func (p *Proxy) reportRefused(namespacedName types.NamespacedName, before, after *services.Part) {
	if svc := p.tracker.service(namespacedName); svc != nil && after.TooLarge > 0 &&
		(before == nil || before.TooLarge == 0) {
		p.events.Event(svc, corev1.EventTypeWarning, "TooLarge", fmt.Sprintf(
			"node %s does not serve it: its ports, endpoints and addresses multiply to %d entries; %d are possible: "+
				"use fewer ports", p.cfg.NodeName, after.TooLarge, services.MostElements))
	}
	known := map[netip.AddrPort]bool{}
	if before != nil {
		for _, r := range before.Refused {
			known[r.Addr] = true
		}
	}
	for _, r := range after.Refused {
		svc := p.tracker.service(namespacedName)
		if known[r.Addr] || svc == nil {
			continue
		}
		p.events.Event(svc, corev1.EventTypeWarning, "AddressInUse",
			fmt.Sprintf("node %s does not serve %s: %s has it", p.cfg.NodeName, r.Addr, r.By))
	}
}

// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"keelson/api/networking/reach"
	"keelson/proxy/services"
)

// written holds each Service's part in the kernel, and since when, for Rules. Parts are immutable.
type written struct {
	mu    sync.Mutex
	parts map[types.NamespacedName]writtenPart
	begun bool // the first table is in the kernel
}

type writtenPart struct {
	part *services.Part
	at   time.Time
}

// note records a change that was written to the kernel. Unchanged parts in a whole table keep their time.
func (w *written) note(c services.Change, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.parts == nil {
		w.parts = make(map[types.NamespacedName]writtenPart, len(c.After))
	}
	w.begun = true
	for n, part := range c.After {
		if part == nil || len(part.Ports) == 0 && len(part.Refused) == 0 && part.TooLarge == 0 {
			delete(w.parts, n)
			continue
		}
		w.parts[n] = writtenPart{part, at}
	}
}

// Rules returns the rules of a Service in this node's kernel, and since when they are there.
func (p *Proxy) Rules(namespace, name string) (*reach.Rules, error) {
	p.written.mu.Lock()
	have, ok := p.written.parts[types.NamespacedName{Namespace: namespace, Name: name}]
	begun := p.written.begun
	p.written.mu.Unlock()
	if !begun {
		return nil, fmt.Errorf("the service proxy of node %s has not written its first rules yet", p.cfg.NodeName)
	}
	out := &reach.Rules{Failing: p.live.since()}
	if !ok {
		return out, nil
	}
	out.Since = have.at
	for _, port := range have.part.Ports {
		served := reach.Port{
			Name:     port.Name,
			Protocol: services.ProtocolName(port.Proto),
			Fronts:   port.Fronts,
			NodePort: port.NodePort,
			Count:    len(port.Endpoints),
		}
		for _, e := range port.Endpoints[:min(len(port.Endpoints), reach.MostEndpoints)] {
			served.Endpoints = append(served.Endpoints, e.Addr)
		}
		out.Ports = append(out.Ports, served)
	}
	if n := have.part.TooLarge; n > 0 {
		out.Refused = append(out.Refused,
			fmt.Sprintf("all of it: %d entries are more than the %d that a Service may have", n, services.MostElements))
	}
	for _, ip := range have.part.Off {
		out.Refused = append(out.Refused, ip+": "+gateOff)
	}
	for _, r := range have.part.Refused {
		out.Refused = append(out.Refused, fmt.Sprintf("%s: %s has it", r.Addr, r.By))
	}
	return out, nil
}

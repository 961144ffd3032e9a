// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/networking/reach"
)

// Node is what a node reports about a Service.
type Node struct {
	reach.Serving
	// Error is why it was not asked or did not answer.
	Error string `json:"error,omitempty"`
}

// Serve adds the nodes' reports and, if the API objects showed no problem, the first problem of a node. now is used for
// ages.
func (s *Service) Serve(o *Objects, nodes []Node, now time.Time) {
	s.Nodes = nodes
	s.now = now
	for i := range nodes {
		if s.Wrong != "" {
			return
		}
		s.Wrong = wrongAt(o, &nodes[i])
	}
}

// wrongAt is the first problem on a node. Unknown is not a problem.
func wrongAt(o *Objects, n *Node) string {
	svc := o.Service
	if d := n.DNS; d != nil && svc.Spec.Type != corev1.ServiceTypeExternalName {
		switch {
		case d.Error != "":
			return fmt.Sprintf("the cluster's DNS server %s does not answer node %s: %s", d.Server, n.Node, d.Error)
		case d.Code != "NOERROR":
			return fmt.Sprintf("DNS server %s answers node %s that there is no %s: %s", d.Server, n.Node, d.Name,
				d.Code)
		}
	}
	if n.Rules == nil || svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" {
		return ""
	}
	if !n.Rules.Failing.IsZero() {
		return fmt.Sprintf("the kernel of node %s refuses rules since %s", n.Node,
			n.Rules.Failing.Local().Format(time.TimeOnly))
	}
	if n.Rules.Since.IsZero() {
		return fmt.Sprintf("node %s has no rules for it: does another proxy serve it (label "+
			"service.kubernetes.io/service-proxy-name)?", n.Node)
	}
	if len(n.Rules.Refused) > 0 {
		return fmt.Sprintf("node %s does not serve %s", n.Node, n.Rules.Refused[0])
	}
	known := endpointAddresses(o)
	for _, p := range n.Rules.Ports {
		for _, e := range p.Endpoints {
			if !known[e.Addr()] {
				return fmt.Sprintf("node %s still sends to %s, which no EndpointSlice has any more", n.Node, e)
			}
		}
	}
	return ""
}

func endpointAddresses(o *Objects) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, sl := range o.Slices {
		for _, e := range sl.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					out[a.Unmap()] = true
				}
			}
		}
	}
	return out
}

func renderNode(b *strings.Builder, n *Node, now time.Time) {
	switch {
	case n.Error != "":
		fmt.Fprintf(b, "   node   %s: %s\n", n.Node, n.Error)
		return
	case n.Rules == nil:
		fmt.Fprintf(b, "   node   %s: rules are not known: %s\n", n.Node, n.NoRules)
	case n.Rules.Since.IsZero():
		fmt.Fprintf(b, "   node   %s: no rules in the kernel\n", n.Node)
	default:
		age := now.Sub(n.Rules.Since).Round(time.Second)
		fmt.Fprintf(b, "   node   %s: rules in the kernel since %s (%s)\n", n.Node,
			n.Rules.Since.Local().Format("15:04:05.000"), age)
		for _, p := range n.Rules.Ports {
			fmt.Fprintf(b, "          %s\n", portRules(&p))
		}
	}
	if n.DNS != nil {
		fmt.Fprintf(b, "          dns %s says %s\n", n.DNS.Server, tryWords(n.DNS))
	}
}

func portRules(p *reach.Port) string {
	var fronts []string
	for _, f := range p.Fronts {
		fronts = append(fronts, f.String())
	}
	if p.NodePort != 0 {
		fronts = append(fronts, fmt.Sprintf("*:%d", p.NodePort))
	}
	text := p.Protocol + " " + strings.Join(fronts, ", ")
	if p.Count == 0 {
		return text + " is refused: no endpoints"
	}
	const shown = 5
	var to []string
	for _, e := range slices.Clone(p.Endpoints)[:min(len(p.Endpoints), shown)] {
		to = append(to, e.String())
	}
	if p.Count > len(to) {
		to = append(to, fmt.Sprintf("and %d more", p.Count-len(to)))
	}
	return text + " -> " + strings.Join(to, ", ")
}

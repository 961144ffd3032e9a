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
func wrongAt(objects *Objects, node *Node) string {
	svc := objects.Service
	if d := node.DNS; d != nil && svc.Spec.Type != corev1.ServiceTypeExternalName {
		switch {
		case d.Error != "":
			return fmt.Sprintf("the cluster's DNS server %s does not answer node %s: %s", d.Server, node.Node,
				d.Error) + neighbour(d)
		case d.Code != "NOERROR":
			return fmt.Sprintf("DNS server %s answers node %s that there is no %s: %s", d.Server, node.Node, d.Name,
				d.Code) + neighbour(d)
		case d.Shared && otherAddresses(svc, d.Addresses):
			return fmt.Sprintf("DNS server %s answers node %s that %s is %s, not %s", d.Server, node.Node, d.Name,
				addresses(d.Addresses), strings.Join(svc.Spec.ClusterIPs, ", ")) + neighbour(d)
		}
	}
	if node.Rules == nil || svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" {
		return ""
	}
	if !node.Rules.Failing.IsZero() {
		return fmt.Sprintf("the kernel of node %s refuses rules since %s", node.Node,
			node.Rules.Failing.Local().Format(time.TimeOnly))
	}
	if node.Rules.Since.IsZero() {
		return fmt.Sprintf("node %s has no rules for it: does another proxy serve it (label "+
			"service.kubernetes.io/service-proxy-name)?", node.Node)
	}
	if len(node.Rules.Refused) > 0 {
		return fmt.Sprintf("node %s does not serve %s", node.Node, node.Rules.Refused[0])
	}
	known := endpointAddresses(objects)
	for _, p := range node.Rules.Ports {
		for _, e := range p.Endpoints {
			if !known[e.Addr()] {
				return fmt.Sprintf("node %s still sends to %s, which no EndpointSlice has any more", node.Node, e)
			}
		}
	}
	return ""
}

// neighbour adds to an answer that another cluster may have given it: the kernel sends what the machine itself sends to
// an address that both serve to one of them.
func neighbour(d *reach.Try) string {
	if !d.Shared {
		return ""
	}
	return "; another cluster on the node's machine serves " + d.Server + " too and may have answered" + separate
}

// separate is what ends that two clusters serve one address.
const separate = ": make one of them with another --service-cluster-ip-range"

// otherAddresses reports whether a name leads to addresses none of which is the Service's.
func otherAddresses(svc *corev1.Service, got []netip.Addr) bool {
	return len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIP != corev1.ClusterIPNone && len(got) > 0 &&
		!slices.ContainsFunc(got, func(a netip.Addr) bool { return slices.Contains(svc.Spec.ClusterIPs, a.String()) })
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

func renderNode(out *strings.Builder, node *Node, now time.Time) {
	switch {
	case node.Error != "":
		fmt.Fprintf(out, "   node   %s: %s\n", node.Node, node.Error)
		return
	case node.Rules == nil:
		fmt.Fprintf(out, "   node   %s: rules are not known: %s\n", node.Node, node.NoRules)
	case node.Rules.Since.IsZero():
		fmt.Fprintf(out, "   node   %s: no rules in the kernel\n", node.Node)
	default:
		age := now.Sub(node.Rules.Since).Round(time.Second)
		fmt.Fprintf(out, "   node   %s: rules in the kernel since %s (%s)\n", node.Node,
			node.Rules.Since.Local().Format("15:04:05.000"), age)
		for _, p := range node.Rules.Ports {
			fmt.Fprintf(out, "          %s\n", portRules(&p))
		}
		for _, what := range node.Rules.Refused {
			fmt.Fprintf(out, "          does not serve %s\n", what)
		}
	}
	if node.DNS != nil {
		fmt.Fprintf(out, "          dns %s says %s\n", node.DNS.Server, tryWords(node.DNS))
	}
}

func portRules(port *reach.Port) string {
	var fronts []string
	for _, f := range port.Fronts {
		fronts = append(fronts, f.String())
	}
	if port.NodePort != 0 {
		fronts = append(fronts, fmt.Sprintf("*:%d", port.NodePort))
	}
	text := port.Protocol + " " + strings.Join(fronts, ", ")
	if port.Count == 0 {
		return text + " is refused: no endpoints"
	}
	const shown = 5
	var to []string
	for _, e := range slices.Clone(port.Endpoints)[:min(len(port.Endpoints), shown)] {
		to = append(to, e.String())
	}
	if port.Count > len(to) {
		to = append(to, fmt.Sprintf("and %d more", port.Count-len(to)))
	}
	return text + " -> " + strings.Join(to, ", ")
}

// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"keelson/api/networking/reach"
)

// conclude compares the expectation with the result of the probe.
func (t *Trace) conclude(j *TraceInput) {
	c := t.Connection
	switch {
	case t.Expected == NoName:
		t.Verdict = t.Why
		return
	case c == nil && t.NoProbe != "":
		t.Verdict = fmt.Sprintf("not tried: %s; expected: %s (%s)", t.NoProbe, t.Expected, t.Why)
		return
	case c == nil:
		t.Verdict = fmt.Sprintf("not tried; expected: %s (%s)", t.Expected, t.Why)
		return
	}
	at := c.Remote
	if c.Endpoint.IsValid() {
		at = c.Endpoint
	}
	if p := podAt(j.Pods, at.Addr()); p != nil {
		t.Met = p.Namespace + "/" + p.Name
	}
	switch c.Outcome {
	case reach.Connected, reach.Answered, reach.Sent:
		if t.strayed(c) {
			t.Verdict = fmt.Sprintf("contradicted: it was sent to %s, which is none of the endpoints: other rules in "+
				"the kernel of node %s come first", c.Endpoint, t.Node)
			return
		}
	default:
	}
	switch c.Outcome {
	case reach.Connected, reach.Answered:
		found := "a connection came about"
		if j.ServiceRange.IsValid() {
			found = "something outside of it does"
		}
		t.Verdict = confirm(t.Expected == Passes || t.Expected == Sometimes, t.Why, found)
	case reach.Refused:
		t.refused(at)
	case reach.TimedOut:
		t.Verdict = confirm(t.Expected == Drops || t.Expected == Sometimes, t.Why,
			"nobody answered: the endpoint's process, its node or a firewall between them")
	case reach.Sent:
		t.Verdict = fmt.Sprintf("open: a datagram was sent, and nobody need answer it; expected: %s (%s)", t.Expected,
			t.Why)
	default:
		noWay := t.Expected == Drops && slices.ContainsFunc(t.Hops, func(h Hop) bool { return h.NoWay != "" })
		t.Verdict = confirm(noWay, t.Why, c.Error)
	}
}

// strayed reports that the kernel sent the connection to an address that is not in the plan of the rules. A connection
// to another node's port leaves this node unchanged.
func (t *Trace) strayed(c *reach.Connection) bool {
	if t.afar && c.Endpoint == c.Remote {
		return false
	}
	return c.Endpoint.IsValid() && len(t.Hops) > 0 && !slices.ContainsFunc(t.Hops, func(h Hop) bool {
		return h.Address == c.Endpoint.String()
	})
}

// refused explains a reset or an ICMP error: nothing listens, unless the rules reject the connection.
func (t *Trace) refused(at netip.AddrPort) {
	switch t.Expected {
	case Refuses:
		t.Verdict = confirm(true, t.Why, "")
	case Passes, Sometimes:
		who := at.Addr().String()
		if t.Met != "" {
			who = "pod " + t.Met
		}
		t.Verdict = fmt.Sprintf("contradicted: the way is open, but %s refused: does it listen at port %d?", who,
			at.Port())
	default:
		t.Verdict = confirm(false, t.Why, "it was refused")
	}
}

func confirm(ok bool, expected, found string) string {
	if ok {
		return "confirmed: " + expected
	}
	return "contradicted: expected that " + expected + ", but " + found
}

// Reached reports that the probe connected.
func (t *Trace) Reached() bool {
	return t.Connection != nil && (t.Connection.Outcome == reach.Connected || t.Connection.Outcome == reach.Answered ||
		t.Connection.Outcome == reach.Sent)
}

// shownHops limits the endpoints in the output.
const shownHops = 20

// RenderTrace prints a trace.
func RenderTrace(out io.Writer, t *Trace) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on node %s -> %s port %d/%s\n", t.From, t.Node, t.To, t.Port, t.Protocol)
	renderNames(&b, t.Names)
	if t.Service != "" {
		fmt.Fprintf(&b, "   service  %s: %s; %s\n", t.Service, strings.TrimSpace(t.Front+" "+t.Address), t.Rules)
	} else if t.Rules != "" {
		fmt.Fprintf(&b, "   address  %s: %s\n", t.Address, t.Rules)
	}
	for i, h := range t.Hops {
		if i == shownHops {
			fmt.Fprintf(&b, "   and %s more\n", count(len(t.Hops)-i, "endpoint"))
			break
		}
		renderHop(&b, &h)
	}
	if c := t.Connection; c != nil {
		renderConnection(&b, t, c)
	}
	for _, u := range t.Unread {
		fmt.Fprintf(&b, "   not read %s\n", u)
	}
	fmt.Fprintf(&b, "   %s\n", t.Verdict)
	_, _ = io.WriteString(out, b.String())
}

func renderNames(b *strings.Builder, n *reach.Names) {
	switch {
	case n == nil:
		return
	case n.Hosts:
		fmt.Fprintf(b, "   name     %s, by the pod's /etc/hosts\n", addresses(n.Addresses))
		return
	}
	for _, try := range n.Tries {
		fmt.Fprintf(b, "   name     %s\n", tryWords(&try))
	}
	if len(n.Tries) > 0 {
		fmt.Fprintf(b, "            nameserver %s, search %s, ndots:%d\n", strings.Join(n.Servers, " "),
			strings.Join(n.Searches, " "), n.NDots)
	}
}

// tryWords describes a DNS query and its answer.
func tryWords(try *reach.Try) string {
	text := strings.Join(append([]string{try.Name}, try.Aliases...), " -> ")
	switch {
	case try.Error != "":
		text += ": no answer: " + try.Error
	case len(try.Addresses) > 0:
		text += " is " + addresses(try.Addresses)
	case try.Code == "NOERROR":
		text += ": has no address"
	default:
		text += ": " + try.Code
	}
	if try.Search != "" && len(try.Addresses) > 0 {
		text += ", by search path " + try.Search
	}
	return text + ", " + took(try.Took)
}

func addresses(in []netip.Addr) string {
	const shown = 4
	var out []string
	for i, a := range in {
		if i == shown {
			out = append(out, fmt.Sprintf("and %d more", len(in)-i))
			break
		}
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

func took(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func renderHop(b *strings.Builder, h *Hop) {
	fmt.Fprintf(b, "   endpoint %s   %.0f %%", h.Address, 100*h.Probability)
	if h.Pod != "" {
		fmt.Fprintf(b, "   pod %s on node %s (%s)", h.Pod, h.Node, h.Way)
	}
	if h.Fake {
		b.WriteString(", which is simulated")
	}
	b.WriteByte('\n')
	if h.NoWay != "" {
		fmt.Fprintf(b, "            no way: %s\n", h.NoWay)
	}
	fmt.Fprintf(b, "            egress: %s\n", h.Egress)
	if h.Pod != "" {
		fmt.Fprintf(b, "            ingress: %s\n", h.Ingress)
	}
}

func renderConnection(b *strings.Builder, t *Trace, c *reach.Connection) {
	from := "a free port"
	if c.Local.IsValid() {
		from = c.Local.String()
	}
	fmt.Fprintf(b, "   probe    %s -> %s: %s after %s\n", from, c.Remote, c.Outcome, took(c.Took))
	if c.Endpoint.IsValid() && c.Endpoint != c.Remote {
		who := ""
		if t.Met != "" {
			who = ", pod " + t.Met
		}
		fmt.Fprintf(b, "            sent to %s%s\n", c.Endpoint, who)
	}
	if c.Route != "" && len(t.Hops) > 0 {
		fmt.Fprintf(b, "            by %s\n", c.Route)
	}
	if c.Error != "" {
		fmt.Fprintf(b, "            %s\n", c.Error)
	}
}

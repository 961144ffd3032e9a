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
	"keelson/lib/words"
)

// conclude compares the expectation with the result of the probe.
func (t *Trace) conclude(traceInput *TraceInput) {
	connection := t.Connection
	switch {
	case t.Expected == NoName:
		t.Verdict = t.Why
		return
	case connection == nil && t.NoProbe != "":
		t.Verdict = fmt.Sprintf("not tried: %s; expected: %s (%s)", t.NoProbe, t.Expected, t.Why)
		return
	case connection == nil:
		t.Verdict = fmt.Sprintf("not tried; expected: %s (%s)", t.Expected, t.Why)
		return
	}
	at := connection.Remote
	if connection.Endpoint.IsValid() {
		at = connection.Endpoint
	}
	if p := podAt(traceInput.Pods, at.Addr()); p != nil {
		t.Met = p.Namespace + "/" + p.Name
	}
	switch connection.Outcome {
	case reach.Connected, reach.Answered, reach.Sent:
		if t.strayed(connection) {
			t.Verdict = fmt.Sprintf("contradicted: it was sent to %s, which is none of the endpoints: ",
				connection.Endpoint) + t.firstRules(connection)
			return
		}
	default:
	}
	switch connection.Outcome {
	case reach.Connected, reach.Answered:
		found := "a connection came about"
		if traceInput.ServiceRange.IsValid() {
			found = "something outside of it does"
			if connection.Shared {
				found = "another cluster on the machine of node " + t.Node + " does" + separate
			}
		}
		t.Verdict = confirm(t.Expected == Passes || t.Expected == Sometimes, t.Why, found)
	case reach.Refused:
		t.refused(at)
	case reach.TimedOut:
		t.Verdict = confirm(t.Expected == Drops || t.Expected == Sometimes, t.Why,
			"no answer: the endpoint's process, its node or a firewall between them")
	case reach.Sent:
		t.Verdict = fmt.Sprintf("open: a datagram was sent, which needs no answer; expected: %s (%s)", t.Expected,
			t.Why)
	default:
		noWay := t.Expected == Drops && slices.ContainsFunc(t.Hops, func(h Hop) bool { return h.NoWay != "" })
		t.Verdict = confirm(noWay, t.Why, connection.Error)
	}
}

// firstRules says whose rules the kernel applied in place of this cluster's.
func (t *Trace) firstRules(c *reach.Connection) string {
	if c.Shared {
		return fmt.Sprintf("another cluster on the machine of node %s serves %s too, and its rules come first%s",
			t.Node, c.Remote.Addr(), separate)
	}
	return "other rules in the kernel of node " + t.Node + " come first"
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
func RenderTrace(out io.Writer, trace *Trace, color bool) {
	p := words.Colors(color)
	var b strings.Builder
	b.WriteString(p.With(words.Bold, fmt.Sprintf("%s on node %s -> %s port %d/%s", trace.From, trace.Node, trace.To,
		trace.Port, trace.Protocol)) + "\n")
	renderNames(&b, trace.Names)
	if trace.Service != "" {
		fmt.Fprintf(&b, "   service  %s: %s; %s\n", trace.Service, strings.TrimSpace(trace.Front+" "+trace.Address),
			trace.Rules)
	} else if trace.Rules != "" {
		fmt.Fprintf(&b, "   address  %s: %s\n", trace.Address, trace.Rules)
	}
	for i, h := range trace.Hops {
		if i == shownHops {
			fmt.Fprintf(&b, "   and %s more\n", words.Count(len(trace.Hops)-i, "endpoint"))
			break
		}
		renderHop(&b, p, &h)
	}
	if c := trace.Connection; c != nil {
		renderConnection(&b, trace, c)
	}
	for _, u := range trace.Unread {
		fmt.Fprintf(&b, "   not read %s\n", u)
	}
	style := words.Red
	if trace.Reached() {
		style = words.Green
	}
	fmt.Fprintf(&b, "   %s\n", p.With(style, trace.Verdict))
	_, _ = io.WriteString(out, b.String())
}

func renderNames(out *strings.Builder, names *reach.Names) {
	switch {
	case names == nil:
		return
	case names.Hosts:
		fmt.Fprintf(out, "   name     %s, by the pod's /etc/hosts\n", addresses(names.Addresses))
		return
	}
	for _, try := range names.Tries {
		fmt.Fprintf(out, "   name     %s\n", tryWords(&try))
	}
	if len(names.Tries) > 0 {
		fmt.Fprintf(out, "            nameserver %s, search %s, ndots:%d\n", strings.Join(names.Servers, " "),
			strings.Join(names.Searches, " "), names.NDots)
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
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func renderHop(out *strings.Builder, p words.Colors, hop *Hop) {
	fmt.Fprintf(out, "   endpoint %s   %.0f %%", hop.Address, 100*hop.Probability)
	if hop.Pod != "" {
		fmt.Fprintf(out, "   pod %s on node %s (%s)", hop.Pod, hop.Node, hop.Way)
	}
	if hop.Fake {
		out.WriteString(", which is simulated")
	}
	out.WriteByte('\n')
	if hop.NoWay != "" {
		fmt.Fprintf(out, "            %s\n", p.With(words.Red, "no way: "+hop.NoWay))
	}
	policy := func(text string, denied bool) {
		style := ""
		if denied {
			style = words.Red
		}
		fmt.Fprintf(out, "            %s\n", p.With(style, text))
	}
	policy("egress: "+hop.Egress, hop.deniedOut)
	if hop.Pod != "" {
		policy("ingress: "+hop.Ingress, hop.deniedIn)
	}
}

func renderConnection(out *strings.Builder, trace *Trace, connection *reach.Connection) {
	from := "a free port"
	if connection.Local.IsValid() {
		from = connection.Local.String()
	}
	fmt.Fprintf(out, "   probe    %s -> %s: %s after %s\n", from, connection.Remote, connection.Outcome,
		took(connection.Took))
	if connection.Endpoint.IsValid() && connection.Endpoint != connection.Remote {
		who := ""
		if trace.Met != "" {
			who = ", pod " + trace.Met
		}
		fmt.Fprintf(out, "            sent to %s%s\n", connection.Endpoint, who)
	}
	if connection.Route != "" && len(trace.Hops) > 0 {
		fmt.Fprintf(out, "            by %s\n", connection.Route)
	}
	if connection.Error != "" {
		fmt.Fprintf(out, "            %s\n", connection.Error)
	}
}

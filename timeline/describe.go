// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"keelson/lib/mark"
)

// request describes an API write; the story's first one with its stages.
func (w *writer) request(m mark.Mark, d *mark.Request) Step {
	s := Step{
		At:      m.At.Sub(w.start),
		Took:    m.Took,
		Who:     m.Component,
		Error:   m.Err,
		HandOff: w.handOffs.of(m),
	}
	target := d.Resource
	if d.Subresource != "" {
		target += "/" + d.Subresource
	}
	s.What = d.Verb + " " + target + " by " + d.User
	if w.detailed[d] {
		if agent, _, _ := strings.Cut(d.UserAgent, " "); agent != "" {
			s.What += " (" + agent + ")"
		}
		if d.AuditID != "" {
			s.What += ", audit " + d.AuditID[:min(len(d.AuditID), 8)]
		}
		s.Parts = stages(s.At, d, s.HandOff)
	} else if d.Revision > 0 {
		s.What += ", revision " + strconv.FormatInt(d.Revision, 10)
	}
	if d.Change != "" {
		s.What += ": " + d.Change
	}
	if w.leavesFor != "" && d.User == schedulerUser && d.Verb == http.MethodDelete {
		s.What += ": preempted by pod " + w.leavesFor
	}
	if d.Code >= http.StatusBadRequest {
		s.What += fmt.Sprintf(" -> %d %s", d.Code, http.StatusText(d.Code))
	}
	return s
}

// stages lists the stages of a request. They are in order, but only their durations are known.
func stages(at time.Duration, d *mark.Request, handOff int) []Step {
	var out []Step
	add := func(who, what string, took time.Duration) {
		if what == "" && took == 0 {
			return
		}
		out = append(out, Step{
			At:      at,
			Took:    took,
			Who:     who,
			What:    what,
			HandOff: handOff,
		})
		at += took
	}
	add("authn", proof(d), d.Authn)
	if d.AuthzWhy != "" || d.Authz > 0 {
		add("authz", strings.TrimSuffix("allowed: "+rule(d), ": "), d.Authz)
	}
	if d.Admission > 0 || d.AdmissionAccepted > 0 || len(d.AdmissionChanged) > 0 {
		add("admission", admitted(d), d.Admission)
	}
	if d.Default+d.Validate+d.Decode > 0 {
		add("decode, default, validate", "", d.Decode+d.Default+d.Validate)
	}
	if d.Revision > 0 {
		what := fmt.Sprintf("%s at revision %d", d.Key, d.Revision)
		if d.Sync > 0 {
			what += ", sync " + Took(d.Sync)
		}
		handOff = stored(handOff)
		add("store", what, d.Store)
	}
	return out
}

// proof shortens how a user authenticated: it leaves out system:authenticated and names only a few groups.
func proof(d *mark.Request) string {
	groups := slices.DeleteFunc(slices.Clone(d.Groups), func(g string) bool { return g == "system:authenticated" })
	switch {
	case len(groups) == 0:
		return d.AuthnHow
	case len(groups) > shown:
		return fmt.Sprintf("%s, groups %s and %d more", d.AuthnHow, strings.Join(groups[:shown-1], " "),
			len(groups)-shown+1)
	}
	return d.AuthnHow + ", groups " + strings.Join(groups, " ")
}

// rule says what allowed the request: binding, role (unless it has the same name) and subject; else the authorizer's
// reason.
func rule(d *mark.Request) string {
	g := d.Grant
	if g == nil {
		return d.AuthzWhy
	}
	name := func(r mark.Ref) string {
		if r.Namespace == "" {
			return r.Name
		}
		return r.Namespace + "/" + r.Name
	}
	text := g.Binding.Kind + " " + name(g.Binding)
	if g.Role.Name != g.Binding.Name {
		text += " (" + g.Role.Kind + " " + g.Role.Name + ")"
	}
	return text + " for " + strings.ToLower(g.Subject.Kind) + " " + name(g.Subject)
}

func admitted(d *mark.Request) string {
	accepted := plural(d.AdmissionAccepted, "plugin") + " accepted it as it was"
	var who []string
	fields := map[string][]string{}
	for _, c := range d.AdmissionChanged {
		if fields[c.By] == nil {
			who = append(who, c.By)
		}
		fields[c.By] = append(fields[c.By], c.Field)
	}
	var told []string
	for _, by := range who {
		told = append(told, by+" set "+strings.Join(fields[by], ", "))
	}
	return strings.Join(append(told, accepted), "; ")
}

func (w *writer) reconcile(m mark.Mark, d *mark.Reconcile) Step {
	at := m.At
	if !d.EventSeen.IsZero() && d.EventSeen.Before(at) && at.Sub(d.EventSeen) < causal {
		at = d.EventSeen
	}
	if at.Before(w.start) {
		at = w.start
	}
	s := Step{
		At:      at.Sub(w.start),
		Took:    m.At.Add(m.Took).Sub(at),
		Who:     m.Component,
		Error:   m.Err,
		HandOff: w.handOffs.of(m),
	}
	s.What = fmt.Sprintf("%s: event seen; wants %d, has %d", d.Controller, d.Wants, d.Has)
	if len(d.Creates) > 0 {
		s.What += ": creates " + some(d.Creates)
	}
	if len(d.Deletes) > 0 {
		s.What += ": deletes " + some(d.Deletes)
	}
	return s
}

// evicted describes the effect of a node's taint on the pod.
func evicted(d *mark.Eviction) string {
	if d.Cancelled {
		return "taint-eviction: stays on " + d.Node
	}
	return fmt.Sprintf("taint-eviction: leaves %s at %s for taint %s, tolerated for %s",
		d.Node, d.Deadline.Local().Format(time.TimeOnly), d.Taint, about(d.Tolerated))
}

const shown = 4

func some(names []string) string {
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:shown-1], ", ") + fmt.Sprintf(" and %d more", len(names)-shown+1)
}

// say describes a mark of the scheduler or kubelet in a few words; empty: there is nothing to add.
func say(m mark.Mark) string {
	text := ""
	switch d := m.Detail.(type) {
	case *mark.Queued:
		if d.Why != "" && d.Why != "PodAdd" {
			text = "queued again: " + requeued(d.Why)
		}
	case *mark.Decision:
		text = decision(d)
	case *mark.Bind:
		text = "bind to " + d.Node + " " + Took(m.Took)
	default:
		text = kubelet(m)
	}
	if m.Err != "" {
		text = strings.TrimSpace(text + " failed: " + m.Err)
	}
	return plain(text)
}

// plain removes gRPC prefixes from an error text.
func plain(text string) string { return wrapped.ReplaceAllString(text, "") }

// wrapped matches the prefix that gRPC adds to an error.
var wrapped = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// requeued describes why a pod is in the queue again: what changed in the cluster, or the back-off has ended.
func requeued(why string) string {
	if why == "BackoffCutShort" {
		return "no other pod waits, so its backoff is cut short"
	}
	return why
}

// staticSeen is the prefix of the line about a static pod's file.
const staticSeen = "static pod: manifest read"

func kubelet(m mark.Mark) string {
	switch d := m.Detail.(type) {
	case *mark.Seen:
		if d.Source == "file" {
			return strings.TrimSpace("static pod: manifest read " + d.File)
		}
		return "event seen"
	case *mark.Volumes:
		if d.Count == 0 {
			return ""
		}
		return plural(d.Count, "volume") + " " + Took(m.Took)
	case *mark.Network:
		if d.HostNetwork {
			return "network of the host"
		}
		return strings.TrimSpace("network "+strings.Join(d.IPs, ", ")) + " " + Took(m.Took) + plugins(d)
	case *mark.Policy:
		return isolated(d) + " " + Took(m.Took)
	case *mark.Sandbox:
		return "sandbox " + Took(m.Took)
	case *mark.Image:
		return image(m, d)
	case *mark.Container:
		return container(m, d)
	case *mark.Probe:
		return probe(d)
	case *mark.Status:
		return status(m, d)
	case *mark.Endpoint:
		return fmt.Sprintf("EndpointSlice %s lists it as ready, revision %d", d.Slice, d.Revision)
	case *mark.Reachable:
		return "reachable as svc/" + d.Service + " (" + d.Front + ") from its node"
	default:
		return string(m.Step)
	}
}

// isolated names the policies that isolate a pod.
func isolated(d *mark.Policy) string {
	var parts []string
	if len(d.Ingress) > 0 {
		parts = append(parts, "ingress by "+some(d.Ingress))
	}
	if len(d.Egress) > 0 {
		parts = append(parts, "egress by "+some(d.Egress))
	}
	return "isolated: " + strings.Join(parts, ", ")
}

func image(m mark.Mark, d *mark.Image) string {
	switch {
	case d.Present:
		return "image " + d.Image + " present"
	case d.Done:
		return fmt.Sprintf("image %s pulled, %s in %s", d.Image, Size(d.Bytes), Took(m.Took))
	case d.Total > 0:
		return fmt.Sprintf("image %s %s of %s", d.Image, Size(d.Bytes), Size(d.Total))
	case d.Bytes == 0 && m.Err == "":
		return "" // the pull begins: the next mark has the result
	case d.Bytes == 0:
		return "image " + d.Image
	default:
		return fmt.Sprintf("image %s %s", d.Image, Size(d.Bytes))
	}
}

func container(m mark.Mark, d *mark.Container) string {
	name := d.Name
	if d.Init {
		name = "init " + name
	}
	if d.Restart > 0 {
		name += fmt.Sprintf(" (restart %d)", d.Restart)
	}
	switch m.Step {
	case mark.StepContainerCreated:
		if m.Err != "" {
			return "creating " + name
		}
		return name + " created " + Took(m.Took)
	case mark.StepContainerStarted:
		if m.Err != "" {
			return "starting " + name
		}
		return name + " started " + Took(m.Took)
	default:
		text := fmt.Sprintf("%s exited with %d", name, d.ExitCode)
		if d.Reason != "" {
			text += " (" + d.Reason + ")"
		}
		return text
	}
}

func probe(d *mark.Probe) string {
	text := d.Kind + " " + d.Action
	switch {
	case d.Output != "":
		text += " -> " + d.Output
	case d.Success:
		text += " ok"
	default:
		text += " fails"
	}
	return text
}

func status(m mark.Mark, d *mark.Status) string {
	switch {
	case m.Step == mark.StepReady:
		return "Ready"
	case m.Step == mark.StepTerminated:
		return "terminated"
	case d.From != "" && d.From != d.To:
		return fmt.Sprintf("status written: %s -> %s", d.From, d.To)
	default:
		return "status written"
	}
}

// decision describes an attempt in one line.
func decision(d *mark.Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "queue %s; filter %s", Took(d.QueueWait), plural(d.Nodes, "node"))
	switch {
	case d.Fit == 0:
		b.WriteString(": none fits")
	case d.Fit < d.Nodes:
		fmt.Fprintf(&b, ": %d fit", d.Fit)
	case d.Nodes == 1:
		b.WriteString(": it fits")
	default:
		b.WriteString(": all fit")
	}
	const verdicts = 2
	for i, v := range d.Rejected {
		if i == verdicts || len(d.Rejected) > verdicts && d.Fit == 0 {
			break
		}
		b.WriteString(", " + v.Node + lead(v))
	}
	if more := d.Nodes - d.Fit - verdicts; d.Fit > 0 && more > 0 && len(d.Rejected) > 0 {
		fmt.Fprintf(&b, ", and %d more do not fit", more)
	}
	if d.Fit == 0 && len(d.Rejected) > verdicts {
		b.WriteString(", " + counted(d.RejectedBy))
	}
	if len(d.Scores) > 0 {
		b.WriteString("; score ")
		for i, s := range d.Scores[:min(len(d.Scores), 3)] {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s %d", s.Node, s.Total)
		}
		if more := d.Fit - min(len(d.Scores), 3); more > 0 {
			fmt.Fprintf(&b, ", and %d more", more)
		}
		if d.Tied > 1 {
			fmt.Fprintf(&b, "; one of %d with the highest score, at random", d.Tied)
		}
	}
	if d.Chosen == "" && d.Waits != "" {
		b.WriteString("; waits until " + d.Waits)
	}
	return b.String()
}

// lead describes why a node does not fit.
func lead(v mark.Verdict) string {
	if taint, ok := strings.CutSuffix(v.Short, " not tolerated"); ok {
		return " has " + taint
	}
	if v.Short != "" {
		return " " + v.Short
	}
	return ": " + v.Reason
}

func counted(by map[string]int) string {
	parts := make([]string, 0, len(by))
	for reason, n := range by {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// Took formats a duration as the timeline does, with microseconds for small values.
func Took(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Took(-d)
	case d < 100*time.Microsecond:
		return fmt.Sprintf("%d µs", (d + 500*time.Nanosecond).Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Minute:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}

// Size formats a number of bytes.
func Size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.0f KB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	default:
		return fmt.Sprintf("%.2f GB", float64(n)/(1<<30))
	}
}

// plugins lists the CNI plugins that connected a pod; empty: none.
func plugins(d *mark.Network) string {
	var ran []string
	for _, p := range d.Plugins {
		ran = append(ran, "plugin "+p.Name+": "+p.Command+" "+Took(p.Took))
	}
	if d.CNI == "" {
		return ""
	}
	return strings.TrimSuffix(" (CNI "+d.CNI+", "+strings.Join(ran, ", "), ", ") + ")"
}

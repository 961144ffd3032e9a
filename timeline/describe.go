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

	"keelson/api/decisions"
	"keelson/event"
)

// request describes an API write; the story's first one with its stages.
func (w *writer) request(m event.Event, req *event.Request) Step {
	step := Step{
		At:      m.At.Sub(w.start),
		Took:    m.Took,
		Who:     m.Component,
		Error:   m.Err,
		HandOff: w.handOffs.of(m),
	}
	target := req.Resource
	if req.Subresource != "" {
		target += "/" + req.Subresource
	}
	step.What = req.Verb + " " + target + " by " + req.User
	if w.detailed[req] {
		if agent, _, _ := strings.Cut(req.UserAgent, " "); agent != "" {
			step.What += " (" + agent + ")"
		}
		if req.AuditID != "" {
			step.What += ", audit " + req.AuditID[:min(len(req.AuditID), 8)]
		}
		step.Parts = stages(step.At, m.Took, req, step.HandOff)
	} else {
		if req.Revision > 0 {
			step.What += ", revision " + strconv.FormatInt(req.Revision, 10)
		}
		step.What += longest(stages(step.At, m.Took, req, step.HandOff))
	}
	if req.Status != nil {
		step.What += ": " + changed(req.Status)
	}
	if w.leavesFor != "" && req.User == schedulerUser && req.Verb == http.MethodDelete {
		step.What += ": preempted by pod " + w.leavesFor
	}
	if req.Code >= http.StatusBadRequest {
		step.What += fmt.Sprintf(" -> %d %s", req.Code, http.StatusText(req.Code))
	}
	return step
}

// changed describes what a write of a pod's status changed.
func changed(c *event.StatusChange) string {
	var told []string
	if c.To != c.From {
		phase := "phase " + c.From + " -> " + c.To
		if why := because(c); why != "" {
			phase += " (" + why + ")"
		}
		told = append(told, phase)
	}
	if c.Nominated != "" {
		told = append(told, "nominated to "+c.Nominated+", which is prepared for it")
	}
	switch {
	case c.Ready == "":
	case c.Ready == "True":
		told = append(told, "is Ready")
	case c.NotReady == "":
		told = append(told, "is not Ready any more")
	default:
		told = append(told, "is not Ready any more: "+c.NotReady)
	}
	if c.Disruption != "" {
		told = append(told, "is to leave: "+c.Disruption)
	}
	var waits []string
	if c.Unscheduled != "" {
		waits = append(waits, "not scheduled: "+c.Unscheduled)
	}
	for _, w := range c.Waiting {
		waits = append(waits, w.Container+" waits: "+w.Reason)
	}
	slices.Sort(waits)
	return strings.Join(append(told, waits[:min(len(waits), mostWaits)]...), "; ")
}

// mostWaits are told of the reasons why a pod waits.
const mostWaits = 3

// because is why the phase changed, in the words of the status.
func because(c *event.StatusChange) string {
	if c.Message == "" {
		return c.Reason
	}
	return c.Reason + ": " + c.Message
}

// stages lists the stages of a request. They are in order, but only their durations are known.
func stages(at, took time.Duration, request *event.Request, handOff int) []Step {
	var out []Step
	rest := took
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
		rest -= took
	}
	if request.Queue >= worthTelling {
		add("queue", "waited for its turn: the API server had too many requests at once", request.Queue)
	}
	add("authn", proof(request), request.Authn)
	if request.AuthzWhy != "" || request.Authz > 0 {
		add("authz", strings.TrimSuffix("allowed: "+rule(request), ": "), request.Authz)
	}
	if request.Admission > 0 || request.AdmissionAccepted > 0 || len(request.AdmissionChanged) > 0 {
		add("admission", admitted(request), request.Admission)
	}
	if request.Default+request.Validate+request.Decode > 0 {
		add("decode, default, validate", "", request.Decode+request.Default+request.Validate)
	}
	if request.Revision > 0 {
		what := fmt.Sprintf("%s at revision %d", request.Key, request.Revision)
		if request.Sync > 0 {
			what += ", sync " + Took(request.Sync)
		}
		if wait := request.Store - request.Sync; wait >= worthTelling {
			what += ", its turn after other writes " + Took(wait)
		}
		handOff = stored(handOff)
		add("store", what, request.Store)
	}
	if rest >= worthTelling && rest > took/10 {
		add("rest", "waited for the client's body, for a processor, or for the answer to be sent", rest)
	}
	return out
}

// worthTelling is the shortest time that a write waits for something out of the ordinary.
const worthTelling = 20 * time.Millisecond

// longest names what a write that took a second or more waited for most, of its stages; empty: it was quick.
func longest(stages []Step) string {
	most := Step{Took: 500 * time.Millisecond}
	for _, s := range stages {
		if s.Took > most.Took {
			most = s
		}
	}
	if most.Who == "" {
		return ""
	}
	return fmt.Sprintf("; %s of it: %s", Took(most.Took), strings.TrimSuffix(most.Who+" "+most.What, " "))
}

// proof shortens how a user authenticated: it leaves out system:authenticated and names only a few groups.
func proof(d *event.Request) string {
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
func rule(d *event.Request) string {
	grant := d.Grant
	if grant == nil {
		return d.AuthzWhy
	}
	name := func(r event.Ref) string {
		if r.Namespace == "" {
			return r.Name
		}
		return r.Namespace + "/" + r.Name
	}
	text := grant.Binding.Kind + " " + name(grant.Binding)
	if grant.Role.Name != grant.Binding.Name {
		text += " (" + grant.Role.Kind + " " + grant.Role.Name + ")"
	}
	return text + " for " + strings.ToLower(grant.Subject.Kind) + " " + name(grant.Subject)
}

func admitted(d *event.Request) string {
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
	if d.AdmissionSlow != "" {
		told = append(told, d.AdmissionSlow)
	}
	return strings.Join(append(told, accepted), "; ")
}

func (w *writer) reconcile(mk event.Event, d *event.Reconcile) Step {
	at := mk.At
	if !d.EventSeen.IsZero() && d.EventSeen.Before(at) && at.Sub(d.EventSeen) < causal {
		at = d.EventSeen
	}
	if at.Before(w.start) {
		at = w.start
	}
	step := Step{
		At:      at.Sub(w.start),
		Took:    mk.At.Add(mk.Took).Sub(at),
		Who:     mk.Component,
		Error:   mk.Err,
		HandOff: w.handOffs.of(mk),
	}
	step.What = fmt.Sprintf("%s: event seen; wants %d, has %d", d.Controller, d.Wants, d.Has)
	if d.Because != "" {
		step.What += ", " + d.Because
	}
	if len(d.Scales) > 0 {
		step.What += ": scales " + some(d.Scales)
	}
	if len(d.Creates) > 0 {
		step.What += ": creates " + some(d.Creates)
	}
	if len(d.Deletes) > 0 {
		step.What += ": deletes " + some(d.Deletes)
	}
	return step
}

// evicted describes the effect of a node's taint on the pod.
func evicted(d *event.Eviction) string {
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
func say(mk event.Event) string {
	text := ""
	switch d := mk.Detail.(type) {
	case *event.Queued:
		if d.Why != "" && d.Why != "PodAdd" {
			text = "queued again: " + requeued(d.Why)
		}
	case *decisions.Attempt:
		text = decision(d)
	case *event.Bind:
		text = "bind to " + d.Node + " " + Took(mk.Took)
	default:
		text = kubelet(mk)
	}
	if mk.Err != "" {
		text = strings.TrimSpace(text + " failed: " + mk.Err)
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

func kubelet(mk event.Event) string {
	switch d := mk.Detail.(type) {
	case *event.Seen:
		if d.Source == "file" {
			return strings.TrimSpace("static pod: manifest read " + d.File)
		}
		return "event seen"
	case *event.Volumes:
		if d.Count == 0 {
			return ""
		}
		return plural(d.Count, "volume") + " " + Took(mk.Took)
	case *event.Network:
		if d.HostNetwork {
			return "network of the host"
		}
		return strings.TrimSpace("network "+strings.Join(d.IPs, ", ")) + " " + Took(mk.Took) + plugins(d)
	case *event.Policy:
		return isolated(d) + " " + Took(mk.Took)
	case *event.Sandbox:
		return "sandbox " + Took(mk.Took)
	case *event.Image:
		return image(mk, d)
	case *event.Container:
		return container(mk, d)
	case *event.Probe:
		return probe(d)
	case *event.Status:
		return status(mk, d)
	case *event.Endpoint:
		return fmt.Sprintf("EndpointSlice %s lists it as ready, revision %d", d.Slice, d.Revision)
	case *event.Reachable:
		return "reachable as svc/" + d.Service + " (" + d.Front + ") from its node"
	default:
		return string(mk.Step)
	}
}

// isolated names the policies that isolate a pod.
func isolated(d *event.Policy) string {
	var parts []string
	if len(d.Ingress) > 0 {
		parts = append(parts, "ingress by "+some(d.Ingress))
	}
	if len(d.Egress) > 0 {
		parts = append(parts, "egress by "+some(d.Egress))
	}
	return "isolated: " + strings.Join(parts, ", ")
}

func image(m event.Event, d *event.Image) string {
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

func container(mk event.Event, ctr *event.Container) string {
	name := ctr.Name
	if ctr.Init {
		name = "init " + name
	}
	if ctr.Restart > 0 {
		name += fmt.Sprintf(" (restart %d)", ctr.Restart)
	}
	switch mk.Step {
	case event.StepContainerCreated:
		if mk.Err != "" {
			return "creating " + name
		}
		return name + " created " + Took(mk.Took)
	case event.StepContainerStarted:
		if mk.Err != "" {
			return "starting " + name
		}
		return name + " started " + Took(mk.Took)
	default:
		text := fmt.Sprintf("%s exited with %d", name, ctr.ExitCode)
		if ctr.Reason != "" {
			text += " (" + ctr.Reason + ")"
		}
		return text
	}
}

func probe(d *event.Probe) string { return d.Kind + " " + probeResult(d) }

func probeResult(d *event.Probe) string {
	text := d.Action
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

func status(m event.Event, d *event.Status) string {
	switch {
	case m.Step == event.StepReady:
		return "Ready"
	case m.Step == event.StepTerminated:
		return "terminated"
	case d.From != "" && d.From != d.To:
		return fmt.Sprintf("status written: %s -> %s", d.From, d.To)
	default:
		return "status written"
	}
}

// decision describes an attempt in one line.
func decision(d *decisions.Attempt) string {
	var out strings.Builder
	fmt.Fprintf(&out, "queue %s; filter %s", Took(d.Queued.Duration), plural(int(d.Nodes), "node"))
	switch {
	case d.Feasible == 0:
		out.WriteString(": none fits")
	case d.Feasible < d.Nodes:
		fmt.Fprintf(&out, ": %d fit", d.Feasible)
	case d.Nodes == 1:
		out.WriteString(": it fits")
	default:
		out.WriteString(": all fit")
	}
	const verdicts = 2
	for i, v := range d.Refusals {
		if i == verdicts || len(d.Refusals) > verdicts && d.Feasible == 0 {
			break
		}
		out.WriteString(", " + v.Node + lead(v))
	}
	if more := int(d.Nodes-d.Feasible) - verdicts; d.Feasible > 0 && more > 0 && len(d.Refusals) > 0 {
		fmt.Fprintf(&out, ", and %d more do not fit", more)
	}
	if d.Feasible == 0 && len(d.Refusals) > verdicts {
		out.WriteString(", " + counted(d.Reasons))
	}
	if len(d.Scores) > 0 {
		out.WriteString("; score ")
		for i, s := range d.Scores[:min(len(d.Scores), 3)] {
			if i > 0 {
				out.WriteString(", ")
			}
			fmt.Fprintf(&out, "%s %d", s.Node, s.Total)
		}
		if more := int(d.Feasible) - min(len(d.Scores), 3); more > 0 {
			fmt.Fprintf(&out, ", and %d more", more)
		}
		if d.Tied > 1 {
			fmt.Fprintf(&out, "; one of %d with the highest score, at random", d.Tied)
		}
	}
	if d.Node == "" && d.WaitsFor != "" {
		out.WriteString("; waits until " + d.WaitsFor)
	}
	return out.String()
}

// lead describes why a node does not fit.
func lead(v decisions.Refusal) string {
	if taint, ok := strings.CutSuffix(v.Shortage, " not tolerated"); ok {
		return " has " + taint
	}
	if v.Shortage != "" {
		return " " + v.Shortage
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
func Took(wait time.Duration) string {
	switch {
	case wait < 0:
		return "-" + Took(-wait)
	case wait < 100*time.Microsecond:
		return fmt.Sprintf("%d µs", (wait + 500*time.Nanosecond).Microseconds())
	case wait < time.Second:
		return fmt.Sprintf("%.1f ms", float64(wait)/float64(time.Millisecond))
	case wait < time.Minute:
		return fmt.Sprintf("%.2f s", wait.Seconds())
	default:
		return wait.Round(time.Second).String()
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
func plugins(d *event.Network) string {
	var ran []string
	for _, p := range d.Plugins {
		ran = append(ran, "plugin "+p.Name+": "+p.Command+" "+Took(p.Took))
	}
	if d.CNI == "" {
		return ""
	}
	return strings.TrimSuffix(" (CNI "+d.CNI+", "+strings.Join(ran, ", "), ", ") + ")"
}

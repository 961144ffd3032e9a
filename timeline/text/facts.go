// SPDX-License-Identifier: Apache-2.0

package text

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
	"keelson/lib/words"
	"keelson/timeline/story"
)

// templates has the words of each fact: what the clauses of a step are that says it. A test holds that none is missing.
var templates = map[event.Step]func(*story.Step) []string{
	event.StepRequest:          clausesOf(request),
	event.StepDelivery:         said(func(*event.Event, *event.Delivery) string { return "" }), // see watch
	event.StepReconcile:        clausesOf(reconcile),
	event.StepQueued:           said(requeued),
	event.StepDecision:         clausesOf(attempt),
	event.StepBind:             said(bind),
	event.StepSeen:             said(seen),
	event.StepVolumes:          said(volumes),
	event.StepNetwork:          said(network),
	event.StepPolicy:           said(isolated),
	event.StepSandbox:          said(sandbox),
	event.StepImage:            said(image),
	event.StepContainerCreated: said(created),
	event.StepContainerStarted: said(startedRun),
	event.StepContainerExited:  said(exited),
	event.StepProbe:            said(probe),
	event.StepStatus:           said(status),
	event.StepReady:            said(func(*event.Event, *event.Status) string { return "Ready" }),
	event.StepEndpoint:         said(listed),
	event.StepReachable:        said(reachable),
	event.StepEviction:         said(evicted),
	event.StepResolvable:       said(resolvable),
	event.StepTerminated:       said(func(*event.Event, *event.Status) string { return "terminated" }),
}

// clausesOf is a template of several clauses.
func clausesOf[T any](template func(*story.Step, *T) []string) func(*story.Step) []string {
	return func(step *story.Step) []string {
		detail, ok := step.Mark.Detail.(*T)
		if !ok {
			return []string{string(step.Mark.Step)} // a node's mark may lack it
		}
		return template(step, detail)
	}
}

// said is a template of one clause; what failed and how often follows.
func said[T any](template func(*event.Event, *T) string) func(*story.Step) []string {
	return clausesOf(func(step *story.Step, detail *T) []string {
		text := template(step.Mark, detail)
		if err := step.Mark.Err; err != "" {
			text = strings.TrimSpace(text + " failed: " + err)
		}
		if step.Times > 1 {
			text += fmt.Sprintf(" (%d times)", step.Times)
		}
		return []string{plain(text)}
	})
}

// request describes an API write.
func request(step *story.Step, req *event.Request) []string {
	if step.Stage != "" {
		return []string{stage(step.Stage, req)}
	}
	target := req.Resource
	if req.Subresource != "" {
		target += "/" + req.Subresource
	}
	out := []string{req.Verb + " " + target + " by " + req.User}
	add := func(text string) { out[len(out)-1] += text }
	if step.Whole {
		if agent, _, _ := strings.Cut(req.UserAgent, " "); agent != "" {
			add(" (" + agent + ")")
		}
		if req.AuditID != "" {
			add(", audit " + req.AuditID[:min(len(req.AuditID), 8)])
		}
	} else {
		if req.Revision > 0 {
			add(", revision " + strconv.FormatInt(req.Revision, 10))
		}
		out = append(out, longest(story.Stages(step))...)
	}
	if req.Status != nil {
		changes := changed(req.Status)
		if len(changes) == 0 {
			changes = []string{""}
		}
		add(": " + changes[0])
		out = append(out, changes[1:]...)
	}
	if step.LeavesFor != "" {
		add(": preempted by pod " + step.LeavesFor)
	}
	if req.Code >= http.StatusBadRequest {
		add(fmt.Sprintf(" -> %d %s", req.Code, http.StatusText(req.Code)))
	}
	return out
}

// changed describes what a write of a pod's status changed.
func changed(c *event.StatusChange) []string {
	var parts []string
	if c.To != c.From {
		phase := "phase " + c.From + " -> " + c.To
		if why := because(c); why != "" {
			phase += " (" + why + ")"
		}
		parts = append(parts, phase)
	}
	if c.Nominated != "" {
		parts = append(parts, "nominated to "+c.Nominated+", which is prepared for it")
	}
	switch {
	case c.Ready == "":
	case c.Ready == "True":
		parts = append(parts, "is Ready")
	case c.NotReady == "":
		parts = append(parts, "is not Ready any more")
	default:
		parts = append(parts, "is not Ready any more: "+c.NotReady)
	}
	if c.Disruption != "" {
		parts = append(parts, "is to leave: "+c.Disruption)
	}
	var waits []string
	if c.Unscheduled != "" {
		waits = append(waits, "not scheduled: "+c.Unscheduled)
	}
	for _, w := range c.Waiting {
		waits = append(waits, w.Container+" waits: "+w.Reason)
	}
	slices.Sort(waits)
	return append(parts, waits[:min(len(waits), mostWaits)]...)
}

// mostWaits is the maximum number of reasons why a pod waits.
const mostWaits = 3

// because is why the phase changed, in the words of the status.
func because(c *event.StatusChange) string {
	if c.Message == "" {
		return c.Reason
	}
	return c.Reason + ": " + c.Message
}

// stage describes what happened in a stage of a request; empty: only its time is known.
func stage(of story.Stage, request *event.Request) string {
	switch of {
	case story.StageQueue:
		return "waited for its turn: the API server had too many requests at once"
	case story.StageAuthn:
		return proof(request)
	case story.StageAuthz:
		return strings.TrimSuffix("allowed: "+rule(request), ": ")
	case story.StageAdmission:
		return admitted(request)
	case story.StageStore:
		what := fmt.Sprintf("%s at revision %d", request.Key, request.Revision)
		if request.Sync > 0 {
			what += ", sync " + Took(request.Sync)
		}
		if wait := request.Store - request.Sync; wait >= story.WorthTelling {
			what += ", its turn after other writes " + Took(wait)
		}
		return what
	case story.StageRest:
		return "waited for the client's body, for a processor, or for the answer to be sent"
	case story.StageObject:
	}
	return ""
}

// longest names what a write that took a second or more waited for most, of its stages; none: it was quick.
func longest(stages []story.Step) []string {
	most := story.Step{Took: 500 * time.Millisecond}
	for _, s := range stages {
		if s.Took > most.Took {
			most = s
		}
	}
	if most.Mark == nil {
		return nil
	}
	req, _ := most.Mark.Detail.(*event.Request)
	what := strings.TrimSuffix(most.Who+" "+stage(most.Stage, req), " ")
	return []string{Took(most.Took) + " of it: " + what}
}

// proof shortens how a user authenticated: it leaves out system:authenticated and names only a few groups.
func proof(d *event.Request) string {
	groups := slices.DeleteFunc(slices.Clone(d.Groups), func(g string) bool { return !story.TellingGroup(g) })
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
	accepted := words.Count(d.AdmissionAccepted, "plugin") + ", no change"
	var who []string
	fields := map[string][]string{}
	for _, c := range d.AdmissionChanged {
		if fields[c.By] == nil {
			who = append(who, c.By)
		}
		fields[c.By] = append(fields[c.By], c.Field)
	}
	var parts []string
	for _, by := range who {
		parts = append(parts, by+" set "+strings.Join(fields[by], ", "))
	}
	if d.AdmissionSlow != "" {
		parts = append(parts, d.AdmissionSlow)
	}
	return strings.Join(append(parts, accepted), "; ")
}

// reconcile describes a pass of a controller.
func reconcile(_ *story.Step, d *event.Reconcile) []string {
	text := fmt.Sprintf("%s: event seen; wants %d, has %d", d.Controller, d.Wants, d.Has)
	if d.Because != "" {
		text += ", " + d.Because
	}
	if len(d.Scales) > 0 {
		text += ": scales " + some(d.Scales)
	}
	if len(d.Creates) > 0 {
		text += ": creates " + some(d.Creates)
	}
	if len(d.Deletes) > 0 {
		text += ": deletes " + some(d.Deletes)
	}
	return []string{text}
}

// evicted describes the effect of a node's taint on the pod.
func evicted(_ *event.Event, d *event.Eviction) string {
	if d.Cancelled {
		return "taint-eviction: stays on " + d.Node
	}
	return fmt.Sprintf("taint-eviction: leaves %s at %s for taint %s, tolerated for %s",
		d.Node, d.Deadline.Local().Format(time.TimeOnly), d.Taint, about(d.Tolerated))
}

// plain removes gRPC prefixes from an error text.
func plain(text string) string { return wrapped.ReplaceAllString(text, "") }

// wrapped matches the prefix that gRPC adds to an error.
var wrapped = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// requeued describes why a pod is in the scheduler's queue again.
func requeued(_ *event.Event, d *event.Queued) string {
	if d.Why == "" || d.Why == "PodAdd" {
		return ""
	}
	return "queued again: " + queueChange(d)
}

// queueChange is what changed in the cluster, or that the back-off has ended.
func queueChange(d *event.Queued) string {
	if d.Why == "BackoffCutShort" {
		return "no other pod waits, so its backoff is cut short"
	}
	return d.Why
}

func bind(mk *event.Event, d *event.Bind) string { return "bind to " + d.Node + " " + Took(mk.Took) }

func seen(_ *event.Event, d *event.Seen) string {
	if d.Source == "file" {
		return strings.TrimSpace("static pod: manifest read " + d.File)
	}
	return "event seen"
}

func volumes(mk *event.Event, d *event.Volumes) string {
	if d.Count == 0 {
		return ""
	}
	return words.Count(d.Count, "volume") + " " + Took(mk.Took)
}

func network(mk *event.Event, d *event.Network) string {
	if d.HostNetwork {
		return "network of the host"
	}
	return strings.TrimSpace("network "+strings.Join(d.IPs, ", ")) + " " + Took(mk.Took) + plugins(d)
}

func sandbox(mk *event.Event, _ *event.Sandbox) string { return "sandbox " + Took(mk.Took) }

func listed(_ *event.Event, d *event.Endpoint) string {
	return fmt.Sprintf("EndpointSlice %s lists it as ready, revision %d", d.Slice, d.Revision)
}

func reachable(_ *event.Event, d *event.Reachable) string {
	return "reachable as svc/" + d.Service + " (" + d.Front + ") from its node"
}

func resolvable(_ *event.Event, d *event.Resolvable) string { return "name " + d.Name + " leads to it" }

// isolated names the policies that isolate a pod.
func isolated(mk *event.Event, d *event.Policy) string {
	var parts []string
	if len(d.Ingress) > 0 {
		parts = append(parts, "ingress by "+some(d.Ingress))
	}
	if len(d.Egress) > 0 {
		parts = append(parts, "egress by "+some(d.Egress))
	}
	return "isolated: " + strings.Join(parts, ", ") + " " + Took(mk.Took)
}

func image(m *event.Event, d *event.Image) string {
	switch {
	case d.Present:
		return "image " + d.Image + " present"
	case d.Done:
		return fmt.Sprintf("image %s pulled, %s in %s", d.Image, words.Bytes(d.Bytes), Took(m.Took))
	case d.Total > 0:
		return fmt.Sprintf("image %s %s of %s", d.Image, words.Bytes(d.Bytes), words.Bytes(d.Total))
	case d.Bytes == 0 && m.Err == "":
		return "" // the pull begins: the next mark has the result
	case d.Bytes == 0:
		return "image " + d.Image
	default:
		return fmt.Sprintf("image %s %s", d.Image, words.Bytes(d.Bytes))
	}
}

func created(mk *event.Event, ctr *event.Container) string {
	if mk.Err != "" {
		return "creating " + runName(ctr)
	}
	return runName(ctr) + " created " + Took(mk.Took)
}

func startedRun(mk *event.Event, ctr *event.Container) string {
	if mk.Err != "" {
		return "starting " + runName(ctr)
	}
	return runName(ctr) + " started " + Took(mk.Took)
}

func exited(_ *event.Event, ctr *event.Container) string {
	text := fmt.Sprintf("%s exited with %d", runName(ctr), ctr.ExitCode)
	if ctr.Reason != "" {
		text += " (" + ctr.Reason + ")"
	}
	return text
}

// runName names a run of a container.
func runName(ctr *event.Container) string {
	name := ctr.Name
	if ctr.Init {
		name = "init " + name
	}
	if ctr.Restart > 0 {
		name += fmt.Sprintf(" (restart %d)", ctr.Restart)
	}
	return name
}

func probe(_ *event.Event, d *event.Probe) string { return d.Kind + " " + probeResult(d) }

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

func status(_ *event.Event, d *event.Status) string {
	if d.From != "" && d.From != d.To {
		return fmt.Sprintf("status written: %s -> %s", d.From, d.To)
	}
	return "status written"
}

// attempt describes a scheduling attempt.
func attempt(step *story.Step, d *decisions.Attempt) []string {
	out := []string{inQueue(d), filtered(d)}
	if len(d.Scores) > 0 {
		out = append(out, scored(d)...)
	}
	if d.Node == "" && d.WaitsFor != "" {
		out = append(out, "waits until "+d.WaitsFor)
	}
	if step.Again {
		out[0] = fmt.Sprintf("try %d: %s", d.Attempt, out[0])
	}
	if err := step.Mark.Err; err != "" {
		out[len(out)-1] += " failed: " + err
	}
	for i := range out {
		out[i] = plain(out[i])
	}
	return out
}

func inQueue(d *decisions.Attempt) string { return "queue " + Took(d.Queued.Duration) }

func filtered(d *decisions.Attempt) string {
	var out strings.Builder
	out.WriteString("filter " + words.Count(d.Nodes, "node"))
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
		fmt.Fprintf(&out, ", and %d more %s not fit", more, words.Verb(more, "does", "do"))
	}
	if d.Feasible == 0 && len(d.Refusals) > verdicts {
		out.WriteString(", " + counted(d.Reasons))
	}
	return out.String()
}

func scored(d *decisions.Attempt) []string {
	var out strings.Builder
	out.WriteString("score ")
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
		return []string{out.String(), fmt.Sprintf("one of %d with the highest score, at random", d.Tied)}
	}
	return []string{out.String()}
}

// lead describes why a node does not fit.
func lead(v decisions.Refusal) string {
	if v.Taint != nil {
		return " has taint " + v.Taint.String()
	}
	if v.Shortage != "" {
		return " " + v.Shortage
	}
	return ": " + v.Reason
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

// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"testing"
	"time"

	"keelson/event"
	"keelson/timeline/story"
)

func TestShortensReasons(t *testing.T) {
	grant := func(binding, role, subject event.Ref) event.Request {
		return event.Request{
			AuthzWhy: "RBAC: allowed",
			Grant:    &event.Grant{Binding: binding, Role: role, Subject: subject},
		}
	}
	for _, c := range []struct {
		in   event.Request
		want string
	}{
		{
			grant(event.Ref{Kind: "ClusterRoleBinding", Name: "cluster-admin"},
				event.Ref{Kind: "ClusterRole", Name: "cluster-admin"}, event.Ref{Kind: "Group", Name: "system:masters"}),
			"ClusterRoleBinding cluster-admin for group system:masters",
		},
		{
			grant(event.Ref{Kind: "RoleBinding", Namespace: "dev", Name: "read"}, event.Ref{Kind: "Role", Name: "pods"},
				event.Ref{Kind: "ServiceAccount", Namespace: "dev", Name: "bot"}),
			"RoleBinding dev/read (Role pods) for serviceaccount dev/bot",
		},
		{event.Request{AuthzWhy: "node authorizer"}, "node authorizer"},
		{event.Request{}, ""},
	} {
		if got := rule(&c.in); got != c.want {
			t.Errorf("rule(%+v) = %q, want %q", c.in, got, c.want)
		}
	}
	for want, in := range map[string]event.Request{
		"client certificate, groups system:masters": {
			AuthnHow: "client certificate",
			Groups:   []string{"system:masters", "system:authenticated"},
		},
		"service account token": {
			AuthnHow: "service account token",
			Groups:   []string{"system:authenticated"},
		},
		"anonymous":             {AuthnHow: "anonymous"},
		"token, groups a b c d": {AuthnHow: "token", Groups: []string{"a", "b", "c", "d"}},
		"token, groups a b c and 2 more": {
			AuthnHow: "token",
			Groups:   []string{"a", "b", "system:authenticated", "c", "d", "e"},
		},
	} {
		groups := strings.Join(in.Groups, " ")
		if got := proof(&in); got != want {
			t.Errorf("proof(%+v) = %q, want %q", in, got, want)
		}
		if strings.Join(in.Groups, " ") != groups {
			t.Errorf("proof changed the groups of %q", want)
		}
	}
}

// TestPullIsShownOnce: the steps of a pull on the way are removed once it has ended; a status without news is shown
// once.
func TestPullIsShownOnce(t *testing.T) {
	kubelet := func(step event.Step, from, took int, d any) event.Event {
		return event.Event{
			Step:      step,
			Component: "kubelet",
			At:        at(from),
			Took:      us(took),
			Subject:   pod,
			Detail:    d,
		}
	}
	marks := []event.Event{
		kubelet(event.StepSeen, 0, 0, &event.Seen{Source: "api"}),
		kubelet(event.StepImage, 1000, 0, &event.Image{Container: "c", Image: "nginx"}),
		kubelet(event.StepStatus, 1500, 100, &event.Status{To: "Pending"}),
		kubelet(event.StepImage, 2000, 0, &event.Image{Container: "c", Image: "nginx", Bytes: 1 << 20, Total: 4 << 20}),
		kubelet(event.StepStatus, 2500, 100, &event.Status{To: "Pending"}),
	}
	story := func() string {
		s, err := listening(marks).Story("default", podName)
		if err != nil || len(s.Steps) != 1 {
			t.Fatalf("%d steps, %v; want one", len(s.Steps), err)
		}
		return s.Steps[0].What
	}
	if got, want := story(), "event seen; status written; image nginx 1.0 MiB of 4.0 MiB"; got != want {
		t.Errorf("on the way: %q, want %q", got, want)
	}
	marks = append(marks, kubelet(event.StepImage, 1000, 5000, &event.Image{
		Container: "c",
		Image:     "nginx",
		Bytes:     4 << 20,
		Total:     4 << 20,
		Done:      true,
	}))
	if got, want := story(), "event seen; image nginx pulled, 4.0 MiB in 5.0 ms; status written"; got != want {
		t.Errorf("at the end: %q, want %q", got, want)
	}
}

// TestPartialSaysSo: the phase and creation time of a pod from before the server's start are shown as unknown.
func TestPartialSaysSo(t *testing.T) {
	it, err := listening([]event.Event{
		{
			Step:      event.StepSeen,
			Component: "kubelet",
			At:        at(0),
			Took:      us(10),
			Subject:   pod,
			Detail:    &event.Seen{Source: "api"},
		},
	}).Story("default", podName)
	if err != nil || !it.Partial || it.Phase != "" {
		t.Fatalf("partial %v, phase %q, %v; want it partial, without a phase", it.Partial, it.Phase, err)
	}
	var out strings.Builder
	Render(&out, &it, false, 0)
	if !strings.Contains(out.String(), "made before this server started") || strings.Contains(out.String(), "Pending") {
		t.Errorf("rendered as\n%s", out.String())
	}
	why, err := listening([]event.Event{
		{
			Step:      event.StepSeen,
			Component: "kubelet",
			At:        at(0),
			Took:      us(10),
			Subject:   pod,
			Detail:    &event.Seen{Source: "api"},
		},
	}).Why("default", podName)
	out.Reset()
	RenderWhy(&out, &why, false, 0)
	if err != nil || !why.Partial || !strings.Contains(out.String(), "made before the server started") {
		t.Errorf("why: partial %v, %v, rendered as\n%s", why.Partial, err, out.String())
	}
	if s, err := listening(journey()).Story("default", podName); err != nil || s.Partial {
		t.Errorf("a whole story: partial %v, %v", s.Partial, err)
	}
}

// TestMadeBefore: only a pod that was certainly made before the records began is said to be. Its creationTimestamp is
// in whole seconds.
func TestMadeBefore(t *testing.T) {
	second := t0.Truncate(time.Second)
	const before = "made before this server started: steps are remembered from "
	for name, c := range map[string]struct {
		created, since, start time.Time
		want                  string
		just                  bool
	}{
		"before":              {second.Add(-time.Second), t0, t0, before + "14:40:10.214 on", false},
		"in the same second":  {second, t0, t0, "created 14:40:10.214", true},
		"a watcher was first": {second, second.Add(-time.Hour), t0, "created 14:40:10.214", true},
		"at the end of a second": {
			second, second.Add(-time.Hour), second.Add(1001 * time.Millisecond), "created 14:40:11.001", true,
		},
		"forgotten": {
			second, second.Add(-time.Hour), t0.Add(time.Hour),
			"created 14:40:10: steps are remembered from 15:40:10.214 on", false,
		},
		"long before": {second.Add(-time.Hour), second, t0, before + "14:40:10.214 on", false},
		"unknown":     {time.Time{}, second.Add(-time.Hour), t0, before + "14:40:10.214 on", false},
	} {
		it := story.Story{
			Namespace:     "default",
			Name:          "p",
			Partial:       true,
			Created:       c.created,
			RecordedSince: c.since,
			Start:         c.start,
		}
		var b strings.Builder
		Render(&b, &it, false, 0)
		if want := "default/p   " + c.want + "\n"; !strings.HasPrefix(b.String(), want) || it.JustMade() != c.just {
			t.Errorf("%s: just made %v, got %q, want %v, %q", name, it.JustMade(), b.String(), c.just, want)
		}
	}
	start := time.Now()
	s, err := listening([]event.Event{{
		Step:      event.StepQueued,
		Component: "scheduler",
		At:        at(0),
		Subject:   pod,
		Detail:    &event.Queued{Why: "PodAdd"},
	}}).Story("default", podName)
	if err != nil || s.RecordedSince.Before(start) || s.RecordedSince.After(time.Now()) {
		t.Errorf("recorded since %v, %v; want the start of the records", s.RecordedSince, err)
	}
}

// TestFailuresInPlainWords: what gRPC wraps around an error, and an unknown size, are not shown.
func TestFailuresInPlainWords(t *testing.T) {
	for want, mk := range map[string]event.Event{
		"starting c failed: exec: no such file": {
			Step:   event.StepContainerStarted,
			Err:    "rpc error: code = Unknown desc = exec: no such file",
			Detail: &event.Container{Name: "c"},
		},
		"queued again: no other pod waits, so its backoff is cut short": {
			Step:   event.StepQueued,
			Detail: &event.Queued{Why: "BackoffCutShort"},
		},
		"image x:1 failed: pull x:1: refused": {
			Step:   event.StepImage,
			Err:    "rpc error: code = Unavailable desc = pull x:1: refused",
			Detail: &event.Image{Image: "x:1"},
		},
	} {
		if got := clauses(&story.Step{Mark: &mk})[0]; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

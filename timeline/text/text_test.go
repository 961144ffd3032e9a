// SPDX-License-Identifier: Apache-2.0

package text

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/ledger"
	"keelson/timeline/story"
	"keelson/timeline/storytest"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

var (
	t0  = storytest.T0
	set = storytest.Set
	pod = storytest.Pod
)

const podName = storytest.PodName

func at(us int) time.Time { return storytest.At(us) }

func us(n int) time.Duration { return storytest.US(n) }

func journey() []event.Event { return storytest.Journey() }

// teller says what a ledger holds in words.
type teller struct{ *ledger.Ledger }

func listening(marks []event.Event) teller {
	kept := ledger.New(ledger.Config{})
	for _, m := range marks {
		kept.Listen(m)
	}
	return teller{kept}
}

func (t teller) Story(namespace, name string) (story.Story, error) {
	pod, owners, err := t.Pod(namespace, name)
	if err != nil {
		return story.Story{}, err
	}
	s := story.Of(pod, owners)
	Fill(&s)
	return s, nil
}

func (t teller) Why(namespace, name string) (story.Why, error) {
	pod, owners, err := t.Pod(namespace, name)
	if err != nil {
		return story.Why{}, err
	}
	w := story.WhyOf(pod, owners, time.Now())
	FillWhy(&w)
	return w, nil
}

func TestRenderJourney(t *testing.T) {
	it, err := listening(journey()).Story("default", podName)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	Render(&b, &it, false, 0)
	golden(t, "journey", b.Bytes())
	b.Reset()
	Render(&b, &it, true, 0)
	golden(t, "journey-color", b.Bytes())
	if !it.Done || it.ReadyAfter != us(48100) || it.Accounted > it.Total {
		t.Errorf("done %v, ready after %v, accounted %v of %v; want done, 48.1ms, no more than all", it.Done,
			it.ReadyAfter, it.Accounted, it.Total)
	}
}

// TestRenderOnTerminals: each row has a bar; a narrow terminal has no room for bars.
func TestRenderOnTerminals(t *testing.T) {
	it, err := listening(quickJourney()).Story("default", podName)
	if err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{60, 80, 120} {
		var b bytes.Buffer
		Render(&b, &it, width == 120, width)
		golden(t, fmt.Sprint("journey-", width), b.Bytes())
		if bars := strings.Contains(b.String(), "█"); bars != (width >= 80) {
			t.Errorf("%d columns: bars %t", width, bars)
		}
	}
}

// quickJourney is the journey of a pod whose owner no admission plugin changed.
func quickJourney() []event.Event {
	marks := journey()
	request := *marks[0].Detail.(*event.Request)
	request.AdmissionChanged = nil
	marks[0].Detail = &request
	return marks
}

// TestIdleStagesAreFolded: authn, authz and admission are one line where they let a request pass unchanged, and lines
// of their own where one of them changed it or took long.
func TestIdleStagesAreFolded(t *testing.T) {
	for name, change := range map[string]func(*event.Request){
		"":        func(*event.Request) {},
		"changed": func(r *event.Request) { r.AdmissionChanged = []event.Change{{By: "x", Field: "spec.y"}} },
		"slow":    func(r *event.Request) { r.Authz = time.Second },
		"webhook": func(r *event.Request) { r.AdmissionSlow = "webhook a 2.0 s" },
	} {
		marks := quickJourney()
		change(marks[0].Detail.(*event.Request))
		it, err := listening(marks).Story("default", podName)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := json.Marshal(it) // as a command gets it
		if err != nil {
			t.Fatal(err)
		}
		var got story.Story
		if err := json.Unmarshal(doc, &got); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		Render(&b, &got, false, 0)
		folded := strings.Contains(b.String(), "checks       passed authn, authz, admission; nothing changed\n")
		if apart := strings.Contains(b.String(), "  authz "); folded != (name == "") || apart == folded {
			t.Errorf("%q: folded %t, apart %t:\n%s", name, folded, apart, b.String())
		}
	}
}

// TestOrderDoesNotMatter: remote agents' marks come late.
func TestOrderDoesNotMatter(t *testing.T) {
	want, err := listening(journey()).Story("default", podName)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		marks := rapid.Permutation(journey()).Draw(t, "order")
		got, err := listening(marks).Story("default", podName)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("story differs (-in order +shuffled):\n%s", diff)
		}
	})
}

func TestAccountedIsPartOfTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		marks := journey()
		marks = marks[:rapid.IntRange(1, len(marks)).Draw(t, "marks")]
		for i := range marks {
			marks[i].At = at(rapid.IntRange(0, 1e6).Draw(t, "at"))
			marks[i].Took = us(rapid.IntRange(0, 1e6).Draw(t, "took"))
		}
		it, err := listening(marks).Story("default", podName)
		if errors.Is(err, ledger.ErrUnknown) {
			return // only the owner's marks were drawn
		}
		if it.Accounted < 0 || it.Accounted > it.Total {
			t.Fatalf("accounted %v of %v", it.Accounted, it.Total)
		}
		for i, st := range it.Steps {
			if st.At < 0 || st.Took < 0 || i > 0 && st.At < it.Steps[i-1].At {
				t.Fatalf("step %d at %v took %v: out of order", i, st.At, st.Took)
			}
		}
		var b bytes.Buffer
		Render(&b, &it, false, 0)
	})
}

func pending() []event.Event {
	big := event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      "big",
		UID:       "big-1",
	}
	marks := []event.Event{{
		Step:      event.StepRequest,
		Component: "apiserver",
		At:        at(3_999_000),
		Took:      us(900),
		Subject:   big,
		Detail: &event.Request{
			Verb:      "POST",
			Resource:  "pods",
			User:      "admin",
			UserAgent: "kubectl/v1.37.2",
			Code:      201,
			Revision:  600,
			Key:       "/registry/pods/default/big",
		},
	}}
	for try := 1; try <= 3; try++ {
		begin := try * 4_000_000
		marks = append(marks,
			event.Event{
				Step:      event.StepQueued,
				Component: "scheduler",
				At:        at(begin),
				Subject:   big,
				Detail:    &event.Queued{Why: []string{"", "PodAdd", "NodeAdd", "AssignedPodDelete"}[try]},
			},
			event.Event{
				Step:      event.StepDecision,
				Component: "scheduler",
				At:        at(begin + 100),
				Took:      us(80),
				Subject:   big,
				Detail: &decisions.Attempt{
					PodDecisionStatus: decisions.PodDecisionStatus{
						Attempt:  int32(try),
						Queued:   metav1.Duration{Duration: us(100)},
						Nodes:    3,
						WaitsFor: "a node or pod changes",
						Message:  "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient memory.",
						Refusals: []decisions.Refusal{
							{
								Node:     "node-1",
								Plugin:   "NodeResourcesFit",
								Reason:   "Insufficient memory",
								Shortage: "memory: asks 4Gi, free 1.2Gi of 3.8Gi",
							},
							{
								Node:     "node-2",
								Plugin:   "NodeResourcesFit",
								Reason:   "Insufficient memory",
								Shortage: "memory: asks 4Gi, free 2.9Gi of 3.8Gi",
								Nearest:  true,
								Hint:     "fits on node-2 if memory request <= 2.9Gi",
							},
							{
								Node:     "node-3",
								Plugin:   "TaintToleration",
								Reason:   "node(s) had untolerated taint(s)",
								Shortage: "taint gpu=true:NoSchedule not tolerated",
								Taint:    &decisions.Taint{Key: "gpu", Value: "true", Effect: "NoSchedule"},
							},
						},
						Fixes: []string{"fits on node-2 if memory request <= 2.9Gi"},
					},
					Reasons: map[string]int{"Insufficient memory": 2, "node(s) had untolerated taint(s)": 1},
				},
			})
	}
	return marks
}

func TestRenderPending(t *testing.T) {
	tl := listening(pending())
	r, _, err := tl.Pod("default", "big")
	if err != nil {
		t.Fatal(err)
	}
	w := story.WhyOf(r, nil, at(16_000_000))
	var b bytes.Buffer
	RenderWhy(&b, &w, false, 0)
	golden(t, "why-pending", b.Bytes())
	s, err := tl.Story("default", "big")
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	Render(&b, &s, false, 0)
	golden(t, "pending", b.Bytes())
}

func TestRenderWhyBound(t *testing.T) {
	w, err := listening(journey()).Why("default", podName)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	RenderWhy(&b, &w, false, 0)
	golden(t, "why-bound", b.Bytes())
}

// TestWhyAtWidths shows decisions of clusters of several sizes on terminals of three widths.
func TestWhyAtWidths(t *testing.T) {
	share := func(raw, score, weight int64) []decisions.PluginScore {
		return []decisions.PluginScore{decisions.NewPluginScore("NodeResourcesFit", raw, score, weight), decisions.NewPluginScore("InterPodAffinity", -20, 50, 2)}
	}
	scheduled := &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt:  1,
			Nodes:    9,
			Feasible: 8,
			Node:     "node-0",
			Tied:     2,
			Refusals: []decisions.Refusal{{
				Node:     "node-8",
				Plugin:   "NodeResourcesFit",
				Reason:   "Insufficient cpu",
				Shortage: "cpu: asks 2, free 1 of 4",
			}},
			ExtensionPoints: []decisions.ExtensionPoint{
				{Name: decisions.PreFilter, Took: metav1.Duration{Duration: us(9)}},
				{Name: decisions.Filter, Took: metav1.Duration{Duration: us(40) - us(9)}},
				{Name: decisions.PreScore, Took: metav1.Duration{Duration: us(20)}},
				{Name: decisions.Score, Took: metav1.Duration{Duration: us(90) - us(20)}},
			},
		},
		Reasons: map[string]int{"Insufficient cpu": 1},
	}
	for i := range int64(8) {
		scheduled.Scores = append(scheduled.Scores, decisions.NodeScore{
			Node:    fmt.Sprint("node-", i),
			Total:   190 - i/2,
			Plugins: share(90-i/2, 90-i/2, 1),
		})
	}
	judged := &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt:  1,
			Nodes:    2,
			Feasible: 2,
			Node:     "node-0",
			Rules: []decisions.Rule{
				{
					Plugin:     "CELPolicy",
					Policy:     "ssd",
					From:       "configuration",
					Field:      "scores[0]",
					Expression: "node.labels[?'disk'].orValue('') == 'ssd'",
					Weight:     2,
				},
				{
					Plugin:     "CELPolicy",
					Policy:     "rank",
					From:       "SchedulingPolicy",
					Field:      "scores[0]",
					Expression: "int(node.labels['rank'])",
					Weight:     6,
				},
			},
		},
	}
	for i := range int64(2) {
		judged.Scores = append(judged.Scores, decisions.NodeScore{
			Node:    fmt.Sprint("node-", i),
			Total:   286 - 200*i,
			Plugins: []decisions.PluginScore{decisions.NewPluginScore("NodeResourcesFit", 86, 86, 1), decisions.NewPluginScore("CELPolicy", 100-100*i, 100-100*i, 2)},
			Rules: []decisions.RuleScore{
				{Raw: float64(100 - 100*i), Normalized: 100 - 100*i, Weighted: 200 - 200*i},
				{Raw: -0.5 * float64(1-i), Failed: i == 1},
			},
		})
	}
	many := &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt:  3,
			Nodes:    5000,
			WaitsFor: "a node or pod changes",
			RefusedBy: []decisions.RefusalGroup{
				{
					Plugin: "NodeResourcesFit",
					Reason: "Insufficient memory",
					Nodes:  4990,
					Names:  []string{"node-0001", "node-0002", "node-0003"},
				},
				{
					Plugin: "TaintToleration",
					Reason: "node(s) had untolerated taint(s)",
					Nodes:  10,
					Names:  []string{"gpu-1", "gpu-2", "gpu-3"},
				},
			},
			Refusals: []decisions.Refusal{{
				Node:     "node-0007",
				Plugin:   "NodeResourcesFit",
				Reason:   "Insufficient memory",
				Shortage: "memory: asks 4Gi, free 2.9Gi of 3.8Gi",
				Nearest:  true,
				Hint:     "x",
			}, {Node: "node-0009"}},
			Fixes: []string{
				"fits on node-0007 if memory request <= 2.9Gi", "add toleration gpu=true:NoSchedule",
				"4 nodes free up when job default/nightly-report ends",
			},
			ExtensionPoints: []decisions.ExtensionPoint{
				{Name: decisions.PreFilter, Took: metav1.Duration{Duration: us(9)}},
				{Name: decisions.Filter, Took: metav1.Duration{Duration: us(900) - us(9)}},
				{Name: decisions.PostFilter, Took: metav1.Duration{Duration: us(800)}},
			},
		},
		Reasons: map[string]int{"Insufficient memory": 4990, "node(s) had untolerated taint(s)": 10},
	}
	preempts := &decisions.Attempt{
		PodDecisionStatus: decisions.PodDecisionStatus{
			Attempt: 1,
			Nodes:   1,
			RefusedBy: []decisions.RefusalGroup{{
				Plugin: "NodeResourcesFit",
				Reason: "Insufficient cpu",
				Nodes:  1,
				Names:  []string{"n"},
			}},
			Refusals: []decisions.Refusal{{
				Node:     "n",
				Plugin:   "NodeResourcesFit",
				Reason:   "Insufficient cpu",
				Shortage: "cpu: asks 2, free 0 of 4",
			}},
			Preemption: &decisions.Preemption{
				Node: "n",
				Victims: []decisions.Victim{
					{Namespace: "shop", Name: "cheap-1", Priority: 5},
					{Namespace: "shop", Name: "cheap-2"},
				},
				Count:         3,
				Reprieved:     2,
				PDBViolations: 1,
				Candidates:    4,
				RunnerUp:      "m",
				Why:           "its most important victim has a lower priority",
			},
		},
		Reasons: map[string]int{"Insufficient cpu": 1},
	}
	for name, why := range map[string]*story.Why{
		"scheduled": {
			Node:     "node-0",
			For:      us(200),
			Decision: scheduled,
			Bind:     &event.Bind{Node: "node-0", Reserve: us(2)},
			BindTook: us(800),
		},
		"many": {
			For:      12 * time.Second,
			Tries:    3,
			Next:     many.WaitsFor,
			Decision: many,
			Brief:    true,
		},
		"preempts": {Tries: 1, Decision: preempts},
		"policies": {Node: "node-0", For: us(200), Decision: judged},
		"facts":    {Node: "node-1", For: us(200), Decision: computed()},
	} {
		for _, width := range []int{60, 80, 120} {
			why.Namespace = "default"
			why.Name = "pod"
			var b bytes.Buffer
			RenderWhy(&b, why, false, width)
			for line := range strings.SplitSeq(b.String(), "\n") {
				if n := utf8.RuneCountInString(line); n > width {
					t.Errorf("%s: line of %d characters, want %d at most: %q", name, n, width, line)
				}
			}
			golden(t, fmt.Sprintf("why-%s-%d", name, width), b.Bytes())
		}
	}
}

// computed is a decision whose scores say what they were computed from: 50:50 wins over 20:60, and small images do not
// count.
func computed() *decisions.Attempt {
	node := func(name string, raw, total int64, balance decisions.Balance, image int64) decisions.NodeScore {
		balanced := decisions.NewPluginScore("NodeResourcesBalancedAllocation", raw, raw, 1)
		balanced.Facts = &decisions.ScoreFacts{Balance: &balance}
		images := decisions.NewPluginScore("ImageLocality", 0, 0, 1)
		images.Facts = &decisions.ScoreFacts{
			Images:        []decisions.NodeImage{{Image: "app:1", Bytes: image, Nodes: 1, Of: 2}},
			MinImageBytes: 23 << 20,
		}
		return decisions.NodeScore{Node: name, Total: total, Plugins: []decisions.PluginScore{balanced, images}}
	}
	return &decisions.Attempt{PodDecisionStatus: decisions.PodDecisionStatus{
		Node:     "node-1",
		Nodes:    2,
		Feasible: 2,
		Scores: []decisions.NodeScore{
			node("node-1", 75, 75, decisions.Balance{
				Resources: []decisions.Utilization{{Resource: "cpu", With: 50}, {Resource: "memory", With: 50}},
				Without:   100,
				With:      100,
			}, 7<<20),
			node("node-2", 65, 65, decisions.Balance{
				Resources: []decisions.Utilization{{Resource: "cpu", With: 20}, {Resource: "memory", With: 60}},
				Without:   100,
				With:      80,
			}, 0),
		},
	}}
}

func TestLongLifeKeepsBothEnds(t *testing.T) {
	tl := listening(journey())
	for i := range 1000 {
		tl.Listen(event.Event{
			Step:      event.StepContainerExited,
			Component: "kubelet",
			At:        at(1_000_000 + i*1000),
			Subject:   pod,
			Detail:    &event.Container{Name: "my-container", Restart: i, ExitCode: 1},
		})
	}
	s, err := tl.Story("default", podName)
	if err != nil {
		t.Fatal(err)
	}
	last := s.Steps[len(s.Steps)-1]
	end := last.Parts[len(last.Parts)-1].What
	if s.ReadyAfter != us(48100) || end != "my-container (restart 999) exited with 1" || s.Dropped == 0 {
		t.Errorf("ready after %v, last %q, dropped %d; want 48.1ms, the last restart, some", s.ReadyAfter, end,
			s.Dropped)
	}
}

// TestWhyEvicted: an eviction by a taint of the pod's node is shown until it is cancelled.
func TestWhyEvicted(t *testing.T) {
	marks := journey()
	subject := event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      podName,
		UID:       podUID(marks),
	}
	now := time.Now()
	line := func(d *event.Eviction) string {
		marks = append(marks, event.Event{
			Step:      event.StepEviction,
			Component: "controllers",
			At:        now,
			Subject:   subject,
			Detail:    d,
		})
		w, err := listening(marks).Why("default", podName)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		RenderWhy(&b, &w, false, 0)
		return b.String()
	}
	got := line(&event.Eviction{
		Node:      "node-1",
		Taint:     "node.kubernetes.io/unreachable:NoExecute",
		Tolerated: 300 * time.Second,
		Deadline:  now.Add(3*time.Minute + 200*time.Millisecond),
	})
	want := "   evicted in 3m0s, at " + now.Add(3*time.Minute+200*time.Millisecond).Local().Format(time.TimeOnly) +
		": node-1 has the taint node.kubernetes.io/unreachable:NoExecute, which the pod tolerates for 5m0s\n"
	if !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant in it\n%s", got, want)
	}
	if got := line(&event.Eviction{Node: "node-1", Cancelled: true}); strings.Contains(got, "evicted") {
		t.Errorf("cancelled, but got\n%s", got)
	}
}

func podUID(marks []event.Event) string {
	for _, m := range marks {
		if m.Subject.Resource == "pods" && m.Subject.Name == podName {
			return m.Subject.UID
		}
	}
	return ""
}

// TestStoryFitsTheTerminal: on a terminal no line is wider than it, whatever an error or a stage says; a terminal would
// break them anywhere.
func TestStoryFitsTheTerminal(t *testing.T) {
	long := strings.Repeat("no route to the registry ", 12)
	s := &story.Story{
		Namespace: "default",
		Name:      "a",
		Steps: []story.Step{
			{Who: "apiserver", What: "POST pods", Parts: []story.Step{{Who: "admission", What: long}}},
			{Who: "kubelet", What: "image x failed: " + long, Error: "failed"},
		},
	}
	for _, width := range []int{60, 80, 120, 200} {
		var b strings.Builder
		Render(&b, s, false, width)
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
		if got := strings.Count(b.String(), "registry"); got != 24 {
			t.Errorf("width %d: %d of 24 words are printed", width, got)
		}
	}
}

// TestStepsFitTheTerminal: lines below a hand-off hang, and a word that is wider than their column is broken in it.
func TestStepsFitTheTerminal(t *testing.T) {
	long := strings.Repeat("spec.containers[*].volumeMounts,", 4) + strings.Repeat(" status.phase!=Failed,status.phase", 4)
	s := &story.Story{
		Namespace: "default",
		Name:      "a",
		Steps: []story.Step{
			{Who: "keelson-networkpolicy", What: long, HandOff: story.HandRequest},
			{Who: "kubelet", What: "image x failed: " + long, Error: "failed", HandOff: story.HandRun},
		},
	}
	for _, width := range []int{80, 120, 200} {
		var b strings.Builder
		RenderSteps(&b, s, false, width)
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"

	"keelson/client/clienttest"
	"keelson/scheduler/policy"
	"keelson/scheduler/policy/objects"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

var definitions = schema.GroupVersionResource{
	Group:    "apiextensions.k8s.io",
	Version:  "v1",
	Resource: "customresourcedefinitions",
}

func server(objs ...runtime.Object) *fake.FakeDynamicClient {
	c := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		definitions:     "CustomResourceDefinitionList",
		policy.Resource: "SchedulingPolicyList",
	}, objs...)
	clienttest.Complete(&c.Fake, c.Tracker())
	return c
}

func definition(served bool) *unstructured.Unstructured {
	status := "False"
	if served {
		status = "True"
	}
	return object(fmt.Sprintf(
		`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": %q},
		"status": {"conditions": [{"type": "Established", "status": %q}]}}`, policy.CRD, status))
}

func object(text string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(text)); err != nil {
		panic(err)
	}
	return u
}

// filtering is a policy whose one filter says that.
func filtering(name string, generation int64, expression string) *unstructured.Unstructured {
	u := object(
		fmt.Sprintf(
			`{"apiVersion": "scheduling.keelson.dev/v1", "kind": "SchedulingPolicy", "metadata": {"name": %q, "generation": %d, "uid": "uid-%s"},
		"spec": {"filters": [{"expression": %q}]}}`, name, generation, name, expression))
	return u
}

// world is a follower of a server in virtual time.
type world struct {
	*fake.FakeDynamicClient
	t       *testing.T
	set     policy.Set
	changes []string
	wrong   []string
}

// follow runs a follower until the function that it returns is called.
func (w *world) follow() (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	text := func(p *policy.Policy) string {
		if p == nil {
			return "-"
		}
		return p.Name
	}
	follower := objects.New(objects.Config{
		Client:    w,
		Set:       &w.set,
		Log:       slog.New(slog.DiscardHandler),
		OnChange:  func(old, now *policy.Policy) { w.changes = append(w.changes, text(old)+">"+text(now)) },
		OnInvalid: func(_ *unstructured.Unstructured, message string) { w.wrong = append(w.wrong, message) },
	})
	wait, err := follower.Start(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		follower.Report(ctx)
		close(done)
	}() // ends with ctx
	synctest.Wait()
	return func() {
		cancel()
		wait()
		<-done
	}
}

func (w *world) put(of schema.GroupVersionResource, u *unstructured.Unstructured) {
	w.t.Helper()
	if old, err := w.Resource(of).Get(w.t.Context(), u.GetName(), metav1.GetOptions{}); err == nil {
		if s, ok := old.Object["status"]; ok && of == policy.Resource {
			u.Object["status"] = s
		}
		if _, err := w.Resource(of).Update(w.t.Context(), u, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	} else if _, err := w.Resource(of).Create(w.t.Context(), u, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) remove(of schema.GroupVersionResource, name string) {
	w.t.Helper()
	if err := w.Resource(of).Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// says is the object's Ready condition, its Degraded one, and the generation in effect.
func (w *world) says(name string) string {
	w.t.Helper()
	u, err := w.Resource(policy.Resource).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var s struct {
		Conditions []metav1.Condition
		Effective  struct{ Generation int64 }
	}
	b, _ := json.Marshal(u.Object["status"])
	if err := json.Unmarshal(b, &s); err != nil {
		w.t.Fatal(err)
	}
	r := meta.FindStatusCondition(s.Conditions, "Ready")
	d := meta.FindStatusCondition(s.Conditions, "Degraded")
	if r == nil || d == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s: %s; %s: %s; %d", r.Reason, r.Message, d.Reason, d.Message, s.Effective.Generation)
}

// refuses returns why the policies in effect refuse a node without labels; empty: they accept it.
func (w *world) refuses() string {
	j, st := policy.NewEvaluation(w.set.All(), "default-scheduler", state.NewPodInfo(schedtest.Pod("p")),
		&state.Snapshot{})
	if st == nil {
		st = j.Filter(state.NewNodeInfo(schedtest.Node("n")))
	}
	if st == nil {
		return ""
	}
	return strings.Join(st.Reasons, ", ")
}

func (w *world) want(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// TestLife: a policy comes with its definition, is changed, broken, repaired and gone; a restart changes nothing.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{FakeDynamicClient: server(), t: t}
		stop := w.follow()
		w.put(definitions, definition(false))
		w.want("not served yet", fmt.Sprint(len(w.changes)), "0")
		w.put(definitions, definition(true))
		w.put(policy.Resource, filtering("a", 1, "node.name != 'n'"))
		w.want("in effect", w.refuses(), "node(s) refused by policy a: does not satisfy node.name != 'n'")
		w.want("status", w.says("a"), "InEffect: generation 1 is in effect; AsExpected: ; 1")

		w.put(policy.Resource, filtering("a", 2, "nod.name == 'm'"))
		const broken = "spec.filters[0].expression: Invalid value: \"nod.name == 'm'\": 1:1: undeclared reference to " +
			"'nod' (in container ''); generation 1 stays in effect"
		w.want("broken", w.refuses(), "node(s) refused by policy a: does not satisfy node.name != 'n'")
		w.want("status", w.says("a"), "Invalid: "+broken+"; AsExpected: ; 1")
		w.want("reported", strings.Join(w.wrong, "|"), broken)

		stop()
		w.set.Use(nil)
		stop = w.follow()
		w.want("after a restart", w.refuses(), "node(s) refused by policy a: does not satisfy node.name != 'n'")
		w.want("reported once", fmt.Sprint(len(w.wrong)), "1")

		w.put(policy.Resource, filtering("a", 3, "node.labels['none'] == ''"))
		w.want("repaired", w.refuses(), "node(s) refused by policy a: filters[0] cannot be evaluated: no such key: none")
		synctest.Wait()
		w.want("trouble", w.says("a"), "InEffect: generation 3 is in effect; EvaluationFailed: spec.filters[0]: no "+
			"such key: none (pod default/p, node n); 3")
		stop()
		stop = w.follow()
		w.want("trouble after a restart", w.says("a"), "InEffect: generation 3 is in effect; EvaluationFailed: "+
			"spec.filters[0]: no such key: none (pod default/p, node n); 3")
		w.put(policy.Resource, filtering("b", 1, "nothing"))
		w.want("never right", w.says("b"), "Invalid: spec.filters[0].expression: Invalid value: \"nothing\": 1:1: "+
			"undeclared reference to 'nothing' (in container ''); the policy is not in effect; AsExpected: ; 0")

		w.remove(policy.Resource, "a")
		w.want("gone", w.refuses(), "")
		w.put(policy.Resource, filtering("c", 1, "false"))
		w.remove(definitions, policy.CRD)
		w.want("its definition gone", w.refuses(), "")
		w.want("changes", strings.Join(w.changes, " "), "->a ->a a>a ->a a>- ->c c>-")
		stop()
	})
}

// TestForbidden: a scheduler that may not read the definition, or the policies, schedules without them until it may: on
// another server than Keelson's the rights come with the definition, after the scheduler.
func TestForbidden(t *testing.T) {
	for _, resource := range []string{definitions.Resource, policy.Resource.Resource} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{FakeDynamicClient: server(definition(true), filtering("a", 1, "false")), t: t}
			var granted atomic.Bool
			w.PrependReactor("list", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
				return !granted.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
			})
			stop := w.follow()
			w.want(resource, w.refuses(), "")
			granted.Store(true)
			time.Sleep(2 * time.Minute) // between two tries
			synctest.Wait()
			w.want(resource+" granted", w.refuses(), "node(s) refused by policy a: does not satisfy false")
			stop()
		})
	}
}

// TestTooMany: more policies than the limit are not in effect until others go.
func TestTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{definition(true)}
		for i := range policy.MaxPolicies {
			objs = append(objs, filtering(fmt.Sprintf("p%03d", i), 1, "true"))
		}
		w := &world{FakeDynamicClient: server(objs...), t: t}
		stop := w.follow()
		w.put(policy.Resource, filtering("x", 1, "false"))
		w.want("beyond the limit", w.refuses(), "")
		w.want("status", w.says("x"), "Invalid: spec: Forbidden: 256 policies are in effect, which is the limit; the "+
			"policy is not in effect; AsExpected: ; 0")
		w.remove(policy.Resource, "p000")
		w.want("with room", w.refuses(), "node(s) refused by policy x: does not satisfy false")
		w.want("status", w.says("x"), "InEffect: generation 1 is in effect; AsExpected: ; 1")
		stop()
	})
}

// TestManifest: the manifest defines the resource that is watched.
func TestManifest(t *testing.T) {
	text := string(policy.Manifest)
	for _, want := range []string{"name: " + policy.CRD, "group: " + policy.Resource.Group, "plural: " +
		policy.Resource.Resource, "name: " + policy.Resource.Version} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
}

// TestCheck: a spec that does not compile is refused, unless it is unchanged.
func TestCheck(t *testing.T) {
	wrong := filtering("p", 1, "node.label.disk == 'hdd'")
	const want = `spec.filters[0].expression: Invalid value: "node.label.disk == 'hdd'": 1:5: undefined field 'label'`
	labelled := wrong.DeepCopy()
	labelled.SetLabels(map[string]string{"a": "b"})
	for _, tt := range []struct {
		name     string
		now, old *unstructured.Unstructured
		want     string
	}{
		{"new", wrong, nil, want},
		{"right", filtering("p", 1, "true"), nil, ""},
		{"changed", wrong, filtering("p", 1, "true"), want},
		{"repaired", filtering("p", 1, "true"), wrong, ""},
		{"wrong before", labelled, wrong, ""},
	} {
		got := ""
		if errs := objects.Check(tt.now, tt.old); len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

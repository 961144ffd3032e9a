// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/api/metrics"
)

// mutation stands between a user and the API server: it makes them do something wrong on purpose.
type mutation func(user string, h http.Handler) http.Handler

// request is what mutations look at.
func request(method, path string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == method && strings.Contains(r.URL.Path, path) }
}

// instead does something else for the requests of a user whose name ends in who.
func instead(who string, which func(*http.Request) bool, what func(
	h http.Handler, w http.ResponseWriter, r *http.Request,
),
) mutation {
	return func(user string, h http.Handler) http.Handler {
		if !strings.HasSuffix(user, who) {
			return h
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if which(r) {
				what(h, w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

// notDone answers with the object that was sent, and does nothing.
func notDone(_ http.Handler, w http.ResponseWriter, r *http.Request) { echo(w, r) }

// gone says that something was deleted.
func gone(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`) // to memory
}

// forced deletes at once what was to have its time.
func forced(h http.Handler, w http.ResponseWriter, r *http.Request) {
	r = r.Clone(r.Context())
	r.Body = http.NoBody
	r.ContentLength = 0
	r.URL.RawQuery = "gracePeriodSeconds=0"
	h.ServeHTTP(w, r)
}

// changed sends something else than was to be sent.
func changed[T runtime.Object](change func(T)) func(h http.Handler, w http.ResponseWriter, r *http.Request) {
	return func(handler http.Handler, w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(b, nil, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if o, ok := obj.(T); ok {
			change(o)
		}
		obj.GetObjectKind().SetGroupVersionKind(*gvk)
		if b, err = json.Marshal(obj); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r = r.Clone(r.Context())
		r.Header.Set("Content-Type", "application/json")
		r.Body = io.NopCloser(bytes.NewReader(b))
		r.ContentLength = int64(len(b))
		handler.ServeHTTP(w, r)
	}
}

// saysLater has a pod that was bound said to be unscheduled a while later.
func saysLater(h http.Handler, w http.ResponseWriter, r *http.Request) {
	h.ServeHTTP(w, r)
	time.Sleep(3 * time.Second)
	patch := `{"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable"}]}}`
	late := httptest.NewRequestWithContext(r.Context(), http.MethodPatch,
		strings.TrimSuffix(r.URL.Path, "/binding")+"/status", strings.NewReader(patch))
	late.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	h.ServeHTTP(httptest.NewRecorder(), late)
}

// actions are what users do, one after another.
type actions []func(ctx context.Context, u *users) error

func make1(resource, name string, n int32) func(context.Context, *users) error {
	return func(ctx context.Context, u *users) error {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.resource == resource })
		u.made[name] = kinds[i]
		return u.createOne(ctx, name, kinds[i], n, nil)
	}
}

// patched is as a user's kubectl patch of what make1 made.
func patched(name, patch string) func(context.Context, *users) error {
	return func(ctx context.Context, u *users) error { return u.patch(ctx, name, u.made[name], patch) }
}

func removed(name string) func(context.Context, *users) error {
	return func(ctx context.Context, u *users) error {
		return u.c.Dynamic.Resource(u.made[name].gvr).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
}

const busyNow = `{"spec":{"template":{"metadata":{"annotations":{"version":"2","` + metrics.AnnotationCPU + `":"` +
	busy + `"}}}}}`

// mutants are broken on purpose. Each is caught by the invariant that says want.
var mutants = []struct {
	name   string
	mutate mutation
	users  actions
	want   string
}{
	{
		"pods are not made", instead("replicaset-controller", request(http.MethodPost, "/pods"), notDone),
		actions{make1("replicasets", "a", 2)},
		"replica set a wants 2, has 0",
	},
	{
		"pods of replication controllers are not made",
		instead("replication-controller", request(http.MethodPost, "/pods"), notDone),
		actions{make1("replicationcontrollers", "a", 2)},
		"replication controller a wants 2, has 0",
	},
	{
		"pods have no owner", instead("replicaset-controller", request(http.MethodPost, "/pods"),
			changed(func(p *corev1.Pod) {
				p.OwnerReferences = nil
				p.Labels = nil
			})),
		actions{make1("replicasets", "a", 2)},
		"has no owner",
	},
	{
		"rollouts do not scale", instead("deployment-controller", request(http.MethodPut, "/replicasets/"), notDone),
		actions{make1("deployments", "a", 2), patched("a", `{"spec":{"replicas":3}}`)},
		"deployment a wants 3",
	},
	{
		"garbage stays", instead("generic-garbage-collector", request(http.MethodDelete, "/pods/"), gone),
		actions{make1("replicasets", "a", 2), removed("a")},
		"is an orphan",
	},
	{
		"identities are not unique", instead("statefulset-controller", request(http.MethodDelete, "/pods/"), forced),
		actions{make1("statefulsets", "a", 2), patched("a", `{"spec":{"replicas":1}}`)},
		"was removed while",
	},
	{
		"claims are not made", instead("statefulset-controller", request(http.MethodPost, "/persistentvolumeclaims"),
			notDone),
		actions{make1("statefulsets", "v", 1)},
		"",
	},
	{
		"claims stay", instead("statefulset-controller", request(http.MethodPut, "/persistentvolumeclaims/"), notDone),
		actions{make1("statefulsets", "v", 2), patched("v", `{"spec":{"replicas":1}}`)},
		"is left of a pod that was scaled away",
	},
	{
		"daemons are not replaced", instead("daemon-set-controller", request(http.MethodDelete, "/pods/"), gone),
		actions{
			make1("daemonsets", "a", 0), patched("a", busyNow),
			patched("a", `{"spec":{"template":{"metadata":{"annotations":{"version":"3"}}}}}`),
		},
		"daemon set a runs on",
	},
	{
		"jobs count twice", instead("job-controller", request(http.MethodPut, "/status"),
			changed(func(j *batchv1.Job) { j.Status.Succeeded *= 2 })),
		actions{make1("jobs", "a", 2)},
		"job a ",
	},
	{
		"cron jobs keep all", instead("cronjob-controller", request(http.MethodDelete, "/jobs/"), gone),
		actions{make1("cronjobs", "a", 0), later(5 * time.Minute)},
		"cron job a keeps",
	},
	{
		"autoscalers do nothing", instead("horizontal-pod-autoscaler", request(http.MethodPut, "/scale"), notDone),
		actions{make1("deployments", "a", 2), func(ctx context.Context, u *users) error {
			return u.autoscaler(ctx, "a")
		}},
		"autoscaler of a wants 5",
	},
	{
		"quotas are not counted", instead("resourcequota-controller", request(http.MethodPut, "/resourcequotas/"),
			notDone),
		actions{
			make1("replicasets", "a", 2), func(ctx context.Context, u *users) error { return u.setQuota(ctx, 10) },
			patched("a", `{"spec":{"replicas":4}}`), patched("a", `{"spec":{"replicas":1}}`),
		},
		"quota says",
	},
	{
		"budgets allow too much", instead("disruption-controller", request(http.MethodPut, "/poddisruptionbudgets/"),
			changed(func(b *policyv1.PodDisruptionBudget) {
				b.Status.DisruptionsAllowed = 5
			})),
		actions{make1("replicasets", "a", 2), func(ctx context.Context, u *users) error {
			return u.protect(ctx, "a", 2)
		}},
		"its budget wants 2",
	},
	{
		"bound pods are said to have no node", instead("system:kube-scheduler", request(http.MethodPost, "/binding"),
			saysLater),
		actions{make1("replicasets", "a", 1)},
		"is bound to",
	},
	{
		"nodes stay cordoned by taints", instead("node-controller", request(http.MethodPatch, "/nodes/"), func(
			h http.Handler, w http.ResponseWriter, r *http.Request,
		) {
			r = r.Clone(r.Context())
			patch := `{"spec":{"taints":[{"key":"x","effect":"PreferNoSchedule"}]}}`
			r.Body = io.NopCloser(strings.NewReader(patch))
			r.ContentLength = int64(len(patch))
			r.Header.Set("Content-Type", "application/merge-patch+json")
			h.ServeHTTP(w, r)
		}),
		actions{
			func(ctx context.Context, u *users) error { return u.c.SilenceNode(ctx, "node-0") },
			later(2 * time.Minute), func(ctx context.Context, u *users) error {
				return u.c.WakeNode(ctx, "node-0")
			},
		},
		"has taints",
	},
}

func later(d time.Duration) func(context.Context, *users) error {
	return func(context.Context, *users) error {
		time.Sleep(d)
		return nil
	}
}

// TestMutants: what is broken on purpose is found, by the invariant that is there for it; and nothing is found when
// nothing is broken.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			for _, mutate := range []mutation{m.mutate, nil} {
				h := &history{
					seed:     1,
					kinds:    kinds,
					mutate:   mutate,
					actions:  m.users,
					patience: 8 * time.Minute,
				}
				found := strings.Join(h.run(t), "\n")
				switch {
				case mutate == nil && found != "":
					t.Errorf("nothing is broken, but it is said: %s\nhistory:\n  %s", found, h.u.history())
				case mutate != nil && (found == "" || !strings.Contains(found, m.want)):
					t.Errorf("not found: want %q, got %q\nhistory:\n  %s", m.want, found, h.u.history())
				}
			}
		})
	}
}

// TestLawOfControllers: an API server refuses a second controller; if one did not, it would be found.
func TestLawOfControllers(t *testing.T) {
	laws := newLaws()
	yes := true
	laws.pods = map[types.UID]health{}
	laws.past = map[string][]change{}
	laws.pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:            "p",
		OwnerReferences: []metav1.OwnerReference{{Name: "a", Controller: &yes}, {Name: "b"}},
	}}, false)
	if found := laws.found(); len(found) > 0 {
		t.Errorf("one controller and another owner: %v", found)
	}
	laws.pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p",
		OwnerReferences: []metav1.OwnerReference{
			{Name: "a", Controller: &yes},
			{Name: "b", Controller: &yes},
		},
	}}, false)
	if found := laws.found(); len(found) != 1 {
		t.Errorf("two controllers: %v", found)
	}
}

// TestLawOfBudgets: an eviction counts under the budget of its moment, not under one that refused it and is gone.
func TestLawOfBudgets(t *testing.T) {
	pod := func(evicted bool) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Labels: map[string]string{"app": "a"}},
			Status: corev1.PodStatus{
				Phase:      corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		}
		if evicted {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type:   corev1.DisruptionTarget,
				Status: corev1.ConditionTrue,
				Reason: "EvictionByEvictionAPI",
			})
		}
		return p
	}
	two := intstr.FromInt32(2)
	for _, there := range []bool{true, false} {
		laws := newLaws()
		laws.pods = map[types.UID]health{}
		laws.past = map[string][]change{}
		laws.pod(pod(false), false)
		laws.budget("a", &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &two}})
		laws.evict(pod(false)) // refused
		if !there {
			laws.budget("a", nil)
		}
		laws.evict(pod(false))
		laws.pod(pod(true), false)
		if found := laws.found(); (len(found) > 0) != there {
			t.Errorf("the budget is there: %t; found %v", there, found)
		}
	}
}

// TestJobDoneTwice: one success too many is wrong, unless a pod may have been created twice.
func TestJobDoneTwice(t *testing.T) {
	one := int32(1)
	done := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       batchv1.JobSpec{Completions: &one, Parallelism: &one},
		Status: batchv1.JobStatus{
			Succeeded:  2,
			Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}},
		},
	}
	for _, tt := range []struct {
		lost string
		want bool
	}{{"", true}, {"ab-", true}, {`{"generateName":"a-"}`, false}} {
		s := state{laws: newLaws()}
		found := false
		s.laws.unheard = [][]byte{[]byte(tt.lost)}
		s.job(done, func(string, ...any) { found = true })
		if found != tt.want {
			t.Errorf("the answer to the creation of %q was lost: found %t, want %t", tt.lost, found, tt.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"keelson/scheduler/framework"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

func (w *world) stored(name string) *resourcev1.ResourceClaim {
	w.t.Helper()
	c, err := w.client.ResourceV1().ResourceClaims("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// store makes a pod on the server.
func (w *world) store(p *corev1.Pod) {
	w.t.Helper()
	if err := w.client.Tracker().Add(p); err != nil {
		w.t.Fatal(err)
	}
}

// TestPreBind: allocation, finalizer and reservation are written, once more after a conflict, and the reservation is
// taken back.
func TestPreBind(t *testing.T) {
	world := newWorld(t, slice("a", device("d")), claim("c", exactly("r", "gpu", 1)))
	world.Add(schedtest.Node("a"))
	conflicts := 1
	world.client.PrependReactor("update", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		if conflicts == 0 {
			return false, nil, nil
		}
		conflicts--
		return true, nil, apierrors.NewConflict(Claims.GroupResource(), "c", errors.New("somebody was faster"))
	})
	pod := schedtest.Pod("p", using("c"))
	world.store(pod)
	attempt := world.place(pod)
	if !world.plugin.PreBindPreFlight(attempt.Cycle, attempt.Pod, "a") {
		t.Error("there is nothing to write")
	}
	if err := world.plugin.PreBind(t.Context(), attempt.Cycle, attempt.Pod, "a"); err != nil {
		t.Fatal(err)
	}
	resourceClaim := world.stored("c")
	if s := resourceClaim.Status; s.Allocation == nil || s.Allocation.Devices.Results[0].Device != "d" ||
		s.Allocation.AllocationTimestamp == nil || s.Allocation.NodeSelector == nil ||
		len(s.ReservedFor) != 1 || s.ReservedFor[0].UID != pod.UID || s.ReservedFor[0].Resource != "pods" ||
		strings.Join(resourceClaim.Finalizers, "") != resourcev1.Finalizer {
		t.Errorf("written: %+v", resourceClaim)
	}
	// Until the cache has it, what was written is known.
	if again, err := world.known.claim("default", "c"); err != nil ||
		len(world.known.view().taken.AllocatedDevices) != 1 {
		t.Errorf("known: %v %v", again, err)
	}
	world.known.ClaimChanged(nil, resourceClaim)
	world.plugin.Unreserve(t.Context(), attempt.Cycle, attempt.Pod, "a")
	if c := world.stored("c"); len(c.Status.ReservedFor) != 0 || c.Status.Allocation == nil {
		t.Errorf("taken back: %+v", c.Status)
	}
}

// TestAnswerLost: the devices of a claim that was written without an answer stay reserved until the cache reports
// them, those of one that was not written are free, and the reservation is taken back.
func TestAnswerLost(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lands bool
		err   error
		kept  int
	}{
		{"written", true, errors.New("connection reset by peer"), 1},
		{"written, says a gateway", true, apierrors.NewInternalError(errors.New("bad gateway")), 1},
		{"not written", false, errors.New("connection reset by peer"), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world := newWorld(t, slice("a", device("d")), claim("c", exactly("r", "gpu", 1)))
			world.Add(schedtest.Node("a"))
			p := schedtest.Pod("p", using("c"))
			world.store(p)
			attempt := world.place(p)
			world.client.PrependReactor("update", "resourceclaims", func(
				act k8stesting.Action,
			) (bool, runtime.Object, error) {
				up, ok := act.(k8stesting.UpdateAction)
				if !ok || act.GetSubresource() != "status" {
					return false, nil, nil
				}
				if tt.lands {
					if err := world.client.Tracker().Update(Claims, up.GetObject(), "default"); err != nil {
						t.Error(err)
					}
				}
				return true, nil, tt.err
			})
			if err := world.plugin.PreBind(t.Context(), attempt.Cycle, attempt.Pod, "a"); !errors.Is(err, tt.err) {
				t.Fatalf("PreBind: %v", err)
			}
			world.plugin.Unreserve(t.Context(), attempt.Cycle, attempt.Pod, "a")
			if n := len(world.known.view().taken.AllocatedDevices); n != tt.kept || world.known.isInFlight("claim-c") {
				t.Errorf("%d devices are kept, want %d", n, tt.kept)
			}
			if c := world.stored("c"); len(c.Status.ReservedFor) != 0 || (c.Status.Allocation != nil) != tt.lands {
				t.Errorf("stored: %+v", c.Status)
			}
		})
	}
}

// TestGone: the reservation of a pod that is deleted while it is bound stays, so that the controller frees the devices.
func TestGone(t *testing.T) {
	for _, tt := range []struct {
		name string
		now  func(*corev1.Pod) // on the server; nil: nothing
		want int               // reservations
	}{
		{"there", func(*corev1.Pod) {}, 0},
		{"deleted", nil, 1},
		{"going", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, 1},
		{"recreated", func(p *corev1.Pod) { p.UID = "another" }, 1},
	} {
		world := newWorld(t, slice("a", device("d")), claim("c", exactly("r", "gpu", 1)))
		world.Add(schedtest.Node("a"))
		p := schedtest.Pod("p", using("c"))
		a := world.place(p)
		if err := world.plugin.PreBind(t.Context(), a.Cycle, a.Pod, "a"); err != nil {
			t.Fatal(err)
		}
		if tt.now != nil {
			now := p.DeepCopy()
			tt.now(now)
			world.store(now)
		}
		world.plugin.Unreserve(t.Context(), a.Cycle, a.Pod, "a")
		if c := world.stored("c"); len(c.Status.ReservedFor) != tt.want ||
			len(world.known.view().taken.AllocatedDevices) != 1 {
			t.Errorf("%s: %+v", tt.name, c.Status)
		}
	}
}

// TestWrittenBeforeDelivered: an allocation that was written counts before the informer delivers the claim,
// and goes with the claim.
func TestWrittenBeforeDelivered(t *testing.T) {
	world := newWorld(t)
	first := claim("c", exactly("r", "gpu", 1))
	written := having(claim("c", exactly("r", "gpu", 1)), "a", "d")
	first.ResourceVersion = "1"
	written.ResourceVersion = "2"
	store := world.caches.Resource().V1().ResourceClaims().Informer().GetStore()
	if err := store.Add(first); err != nil {
		t.Fatal(err)
	}
	if err := world.known.assume(first, written.Status.Allocation, state.GroupKey{}); err != nil {
		t.Fatal(err)
	}
	kept := func(when string, want int) {
		t.Helper()
		if n := len(world.known.view().taken.AllocatedDevices); n != want {
			t.Errorf("%s: %d devices are kept, want %d", when, n, want)
		}
	}
	world.known.RecordWritten(written)
	kept("written", 1)
	world.known.ClaimChanged(nil, first)
	kept("the first was delivered", 1)
	world.known.ClaimChanged(first, written)
	kept("the written one was delivered", 1)
	if err := store.Delete(written); err != nil {
		t.Fatal(err)
	}
	world.known.ClaimChanged(written, nil)
	world.known.RecordWritten(written)
	kept("gone", 0)
	if len(world.known.states) != 0 {
		t.Errorf("left: %v", world.known.states)
	}
}

// TestMeanwhile: a binding respects changes of a claim since the decision.
func TestMeanwhile(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*resourcev1.ResourceClaim)
		want   string
	}{
		{
			"allocated", func(c *resourcev1.ResourceClaim) { having(c, "a", "other") },
			"claim default/c got allocated elsewhere in the meantime",
		},
		{
			"deleted", func(c *resourcev1.ResourceClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
			"claim default/c got deleted in the meantime",
		},
		{
			"recreated", func(c *resourcev1.ResourceClaim) { c.UID = "another" },
			"claim default/c got deleted in the meantime",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world := newWorld(t, slice("a", device("d")), claim("c", exactly("r", "gpu", 1)))
			world.Add(schedtest.Node("a"))
			attempt := world.place(schedtest.Pod("p", using("c")))
			o, err := world.client.Tracker().Get(Claims, "default", "c")
			if err != nil {
				t.Error(err)
			}
			c, _ := o.(*resourcev1.ResourceClaim)
			c = c.DeepCopy()
			tt.change(c)
			first := true
			world.client.PrependReactor("update", "resourceclaims", func(
				k8stesting.Action,
			) (bool, runtime.Object, error) {
				if !first {
					return false, nil, nil
				}
				first = false
				if err := world.client.Tracker().Update(Claims, c, "default"); err != nil {
					t.Error(err)
				}
				return true, nil, apierrors.NewConflict(Claims.GroupResource(), "c", errors.New("somebody was faster"))
			})
			if err := world.plugin.PreBind(t.Context(), attempt.Cycle, attempt.Pod, "a"); err == nil ||
				err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			world.plugin.Unreserve(t.Context(), attempt.Cycle, attempt.Pod, "a")
			if n := len(world.known.view().taken.AllocatedDevices); n != 0 {
				t.Errorf("%d devices are still kept", n)
			}
		})
	}
}

// TestConditions: a pod is bound when its devices are ready, and not when they cannot become so.
func TestConditions(t *testing.T) {
	for _, tt := range []struct{ said, want string }{
		{"Attached", ""},
		{"Broken", "device binding failed: claim=c"},
		{"", "device binding timeout"},
	} {
		world := newWorld(t, claim("c", exactly("r", "gpu", 1)))
		if tt.said == "" {
			world.plugin.Binding = 10 * time.Millisecond
		}
		d := device("d")
		d.BindingConditions = []string{"Attached"}
		d.BindingFailureConditions = []string{"Broken"}
		world.add(slice("a", d))
		world.Add(schedtest.Node("a"))
		attempt := world.place(schedtest.Pod("p", using("c")))
		world.plugin.Waiting = func(_ *corev1.Pod, node string) {
			if resourceClaim := world.stored("c"); tt.said != "" && node == "a" {
				resourceClaim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
					Driver:     driver,
					Pool:       "a",
					Device:     "d",
					Conditions: []metav1.Condition{{Type: tt.said, Status: metav1.ConditionTrue}},
				}}
				resourceClaim.ResourceVersion = "100"
				if err := world.caches.Resource().V1().ResourceClaims().Informer().GetStore().Update(
					resourceClaim); err != nil {
					t.Error(err)
				}
				world.known.ClaimChanged(nil, resourceClaim)
			}
		}
		err := world.plugin.PreBind(t.Context(), attempt.Cycle, attempt.Pod, "a")
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: got %v, want %q", tt.said, err, tt.want)
		}
	}
}

// TestPostFilter: devices on a node where the pod cannot go are given up, unless another pod uses them.
func TestPostFilter(t *testing.T) {
	for _, tt := range []struct {
		users string
		want  bool
	}{{"", true}, {"pod-default-p", true}, {"other", false}, {"pod-default-p other", false}} {
		c := having(claim("c", exactly("r", "gpu", 1)), "gone", "d")
		for uid := range strings.FieldsSeq(tt.users) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
				Resource: "pods",
				UID:      types.UID(uid),
			})
		}
		w := newWorld(t, c)
		w.Add(schedtest.Node("a"))
		a := w.place(schedtest.Pod("p", using("c")))
		_, said := w.plugin.PostFilter(t.Context(), a)
		if got := w.stored("c").Status.Allocation == nil; got != tt.want || (said != "") != tt.want {
			t.Errorf("used by %q: deallocated %v (%s), want %v", tt.users, got, said, tt.want)
		}
	}
}

// TestDeallocationAfterConflict: devices are given up although somebody wrote the claim meanwhile, unless it is used by
// then, or has others.
func TestDeallocationAfterConflict(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*resourcev1.ResourceClaim)
		want   bool
	}{
		{"a label", func(c *resourcev1.ResourceClaim) { c.Labels = map[string]string{"a": "b"} }, true},
		{"a user", func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", UID: "other"}}
		}, false},
		{
			"another device", func(c *resourcev1.ResourceClaim) {
				c.Status.Allocation.Devices.Results[0].Device = "e"
			}, false,
		},
	} {
		world := newWorld(t, having(claim("c", exactly("r", "gpu", 1)), "gone", "d"))
		conflicts := 0
		world.client.PrependReactor("update", "resourceclaims", func(
			a k8stesting.Action,
		) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 1 {
				return false, nil, nil
			}
			o, err := world.client.Tracker().Get(Claims, "default", "c")
			if err != nil {
				t.Error(err)
			}
			c, _ := o.(*resourcev1.ResourceClaim)
			c = c.DeepCopy()
			tt.change(c)
			if err := world.client.Tracker().Update(Claims, c, "default"); err != nil {
				t.Error(err)
			}
			return true, nil, apierrors.NewConflict(Claims.GroupResource(), "c", nil)
		})
		world.Add(schedtest.Node("a"))
		world.plugin.Failed = func(_ *corev1.Pod, err error) { t.Errorf("%s: %v", tt.name, err) }
		world.plugin.PostFilter(t.Context(), world.place(schedtest.Pod("p", using("c"))))
		if got := world.stored("c"); (got.Status.Allocation == nil) != tt.want || conflicts == 1 != !tt.want {
			t.Errorf("%s: %+v after %d writes, deallocated is to be %v", tt.name, got.Status, conflicts, tt.want)
		}
	}
}

// TestHints: which changes of claims wake a pod.
func TestHints(t *testing.T) {
	world := newWorld(t, claim("c", exactly("r", "gpu", 1)))
	pod := world.Try(schedtest.Pod("p", using("c"))).Pod
	free := claim("x")
	held := having(claim("x"), "a", "d")
	mine := having(claim("c"), "a", "d")
	for _, tt := range []struct {
		name     string
		old, now any
		want     bool
	}{
		{"freed", held, free, true},
		{"gone with devices", held, nil, true},
		{"gone", free, nil, false},
		{"another's allocation", free, held, false},
		{"another's", nil, free, false},
		{"its own", nil, claim("c"), true},
		{"its own's allocation", claim("c"), mine, true},
		{"its own, otherwise", mine, mine, false},
		{
			"its own, recreated", &resourcev1.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "former"},
			}, claim("c"), true,
		},
	} {
		if got := world.plugin.claimMayHelp(pod, &framework.Event{
			Kinds:     framework.Objects,
			Resource:  Claims,
			OldObject: tt.old,
			NewObject: tt.now,
		}); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"keelson/client/clienttest"
)

// TestLeadAfterKill: the lease of a leader that was killed is taken when it has ended, not before, and within two
// tries.
func TestLeadAfterKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder := "killed"
		seconds := int32(15)
		now := metav1.NowMicro()
		cl := &Client{Interface: Plain(clienttest.New(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "x"},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       &holder,
				LeaseDurationSeconds: &seconds,
				AcquireTime:          &now,
				RenewTime:            &now,
			},
		}))}
		begin := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		err := cl.Lead(ctx, Election{Name: "x", Identity: "two"}, func(context.Context) error {
			if took := time.Since(begin); took < 15*time.Second || took > 20*time.Second {
				t.Errorf("two leads after %s, want 15 s and up to two tries more", took)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestLeadTells: who leads and who stopped is an event about the lease, as of the components of Kubernetes.
func TestLeadTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{Interface: Plain(clienttest.New())}
		for _, component := range []string{"", "default-scheduler"} {
			e := Election{Name: "x", Identity: "one" + component, Component: component}
			if err := c.Lead(t.Context(), e, func(context.Context) error {
				synctest.Wait()
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		list, err := c.CoreV1().Events("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind != "Lease" || e.InvolvedObject.Name != "x" || e.Type != "Normal" ||
				e.Reason != "LeaderElection" || e.Source.Component != "default-scheduler" {
				t.Errorf("event %+v", e)
			}
			said = append(said, e.Message)
		}
		if want := []string{
			"onedefault-scheduler became leader", "onedefault-scheduler stopped leading",
		}; !slices.Equal(said, want) {
			t.Errorf("events %q, want %q", said, want)
		}
	})
}

// TestLeadCutOff: a leader that cannot renew its lease stops its work before another may take it.
func TestLeadCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := clienttest.New()
		var cut atomic.Bool
		var last atomic.Pointer[time.Time]
		cs.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if cut.Load() {
				return true, nil, errors.New("no route to host")
			}
			now := time.Now()
			last.Store(&now)
			return false, nil, nil
		})
		c := &Client{Interface: Plain(cs)}
		err := c.Lead(t.Context(), Election{Name: "x", Identity: "one"}, func(ctx context.Context) error {
			time.Sleep(time.Minute)
			cut.Store(true)
			<-ctx.Done()
			if took := time.Since(*last.Load()); took >= 15*time.Second {
				t.Errorf("it works for %s after its last renewal, while others may take the lease after 15 s", took)
			}
			return nil
		})
		if !errors.Is(err, ErrNotLeader) {
			t.Errorf("got %v, want ErrNotLeader", err)
		}
	})
}

// TestLeadAfterAPause: a leader that sees another in its place, as after its process was stopped for a minute, stops
// its work then, not at the elector's deadline.
func TestLeadAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := clienttest.New()
		c := &Client{Interface: Plain(cs)}
		err := c.Lead(t.Context(), Election{Name: "x", Identity: "one"}, func(ctx context.Context) error {
			lease, err := c.CoordinationV1().Leases("kube-system").Get(ctx, "x", metav1.GetOptions{})
			if err != nil {
				return err
			}
			other := "other"
			now := metav1.NowMicro()
			lease.Spec.HolderIdentity = &other
			lease.Spec.RenewTime = &now
			begin := time.Now()
			cs.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("the object has been modified")
			})
			if err := cs.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), lease,
				"kube-system"); err != nil {
				return err
			}
			<-ctx.Done()
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it works for %s next to another leader", took)
			}
			return nil
		})
		if !errors.Is(err, ErrNotLeader) {
			t.Errorf("got %v, want ErrNotLeader", err)
		}
	})
}

// leaseWrites is a lock whose writes take some time.
type leaseWrites struct {
	resourcelock.Interface
	take time.Duration
}

func (leaseWrites) Identity() string { return "one" }

func (l leaseWrites) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	time.Sleep(l.take)
	return nil
}

// TestTenure: the tenure ends a lease's duration after the last renewal was sent, whenever it was answered.
func TestTenure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ended := time.Duration(0)
		lock := &tenureLock{
			Interface: leaseWrites{take: 4 * time.Second},
			lease:     15 * time.Second,
			end:       func() { ended = time.Since(begin) },
		}
		for range 2 {
			if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "one"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil { // it gives the lease up
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := 19 * time.Second; ended != want {
			t.Errorf("it ended after %s, want %s", ended, want)
		}
	})
}

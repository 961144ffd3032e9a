// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election names the lease by which copies of a component agree on one of them.
type Election struct {
	Namespace string // default kube-system
	Name      string
	Identity  string // unique among the copies
	// Lease is for how long a leader that went silent is trusted to live (default 15 s). A leader that cannot renew
	// its lease gives up after Deadline (default two thirds of Lease), and all try every Retry (default 2/15 of Lease).
	Lease, Deadline, Retry time.Duration
	// Component is the reporter of the events LeaderElection about the lease; empty: there are none.
	Component string
	// WatchDog, which may be nil, knows whether this copy still renews the lease that it holds: for health checks.
	WatchDog *leaderelection.HealthzAdaptor
}

// Default returns e with its gaps filled, but for Name and Identity.
func (e Election) Default() Election {
	e.Namespace = cmp.Or(e.Namespace, metav1.NamespaceSystem)
	e.Lease = cmp.Or(e.Lease, 15*time.Second)
	e.Deadline = cmp.Or(e.Deadline, e.Lease*2/3)
	e.Retry = cmp.Or(e.Retry, e.Lease*2/15)
	return e
}

// ErrNotLeader ends work whose lease could not be renewed.
var ErrNotLeader = errors.New("leadership lost")

// errReleased ends the wait of a copy that has seen the leader give up its lease: it tries at once.
var errReleased = errors.New("the lease is free")

// Lead waits until this copy is the leader and then runs work. It returns when work has ended: with work's error, or
// ErrNotLeader when the lease was lost, which ends work's context. When ctx ends, the lease is given back after work.
func (c *Client) Lead(ctx context.Context, election Election, work func(ctx context.Context) error) error {
	var events resourcelock.EventRecorder // nil: none
	if election.Component != "" {
		recorder := c.Events(election.Component, "", nil)
		events = recorder
		var writes sync.WaitGroup
		defer writes.Wait()
		recording, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		writes.Go(func() { _ = recorder.Run(recording, func() {}) }) // it has no errors
	}
	for {
		err := c.lead(ctx, election.Default(), events, work)
		switch {
		case !errors.Is(err, errReleased):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// lead is one try: until work has ended, or until the lease is seen to be free.
func (c *Client) lead(ctx context.Context, election Election, events resourcelock.EventRecorder, work func(
	ctx context.Context,
) error,
) error {
	t := &term{done: make(chan error, 1)}
	// The lease is held until work has ended, also when ctx ends first.
	hold, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	watching, unwatch := context.WithCancel(hold)
	defer unwatch()
	tenure, end := context.WithCancel(hold)
	defer end()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &tenureLock{
			Interface: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: election.Namespace, Name: election.Name},
				Client:     c.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: election.Identity, EventRecorder: events},
			},
			lease: election.Lease,
			end:   end,
		},
		LeaseDuration:   election.Lease,
		RenewDeadline:   election.Deadline,
		RetryPeriod:     election.Retry,
		ReleaseOnCancel: true,
		Name:            election.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				unwatch()
				t.lead(ctx, held, tenure, work)
				release()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect leader %s/%s: %w", election.Namespace, election.Name, err)
	}
	if election.WatchDog != nil {
		election.WatchDog.SetLeaderElection(elector)
	}
	defer context.AfterFunc(ctx, func() {
		if t.state.Load() != leading { // else work ends first, by its own context
			release()
		}
	})()
	var seen sync.WaitGroup
	defer seen.Wait()
	defer release()
	seen.Go(func() { c.awaitRelease(watching, election, func() { t.free(release) }) })
	elector.Run(hold)
	if t.freed.Load() {
		return errReleased
	}
	if t.state.CompareAndSwap(waiting, over) {
		return ctx.Err()
	}
	return <-t.done
}

// The states of a term: work begins once, if at all, and not after the elector has given up.
const (
	waiting int32 = iota
	leading
	over
)

type term struct {
	state atomic.Int32
	freed atomic.Bool
	done  chan error // has room for the result
}

// free ends a term that has not begun.
func (t *term) free(release func()) {
	if t.state.CompareAndSwap(waiting, over) {
		t.freed.Store(true)
		release()
	}
}

// awaitRelease calls free when it sees a leader give its lease up, so that the next one need not wait for its next try.
// It returns when ctx ends, or when the lease may not be watched: then the tries must do.
func (c *Client) awaitRelease(ctx context.Context, election Election, free func()) {
	for ctx.Err() == nil {
		w, err := c.CoordinationV1().Leases(election.Namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: "metadata.name=" + election.Name,
		})
		if apierrors.IsForbidden(err) {
			return
		}
		if err == nil {
			if watchRelease(ctx, w, election.Name) {
				free()
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(election.Retry):
		}
	}
}

// watchRelease reports that somebody held the lease and gave it up; false at the end of the watch or of ctx.
func watchRelease(ctx context.Context, w watch.Interface, name string) bool {
	defer w.Stop()
	held := false
	for {
		select {
		case <-ctx.Done():
			return false
		case ev, ok := <-w.ResultChan():
			if !ok {
				return false
			}
			l, is := ev.Object.(*coordinationv1.Lease)
			if !is || l.Name != name {
				continue
			}
			now := ev.Type != watch.Deleted && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != ""
			if held && !now {
				return true
			}
			held = now
		}
	}
}

// lead runs work until it ends by itself, the lease is lost (held or tenure has ended) or ctx ends.
func (t *term) lead(ctx, held, tenure context.Context, work func(context.Context) error) {
	if !t.state.CompareAndSwap(waiting, leading) {
		return
	}
	own, cancel := context.WithCancel(held)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer context.AfterFunc(tenure, cancel)()
	err := work(own)
	// no one releases the lease before work has ended
	if (held.Err() != nil || tenure.Err() != nil) && ctx.Err() == nil {
		err = errors.Join(ErrNotLeader, err)
	}
	t.state.Store(over)
	t.done <- err
}

// tenureLock is the lock of a lease that ends this copy's tenure as soon as another copy may lead: when the lease was
// not renewed for its duration, or is seen not to be this copy's. The elector alone would go on until its deadline: a
// process that was stopped for a minute, and whose lease another copy has by now, would be a second leader for so long.
type tenureLock struct {
	resourcelock.Interface
	lease time.Duration
	end   func() // may be called more than once

	mu    sync.Mutex
	timer *time.Timer // calls end; nil: this copy has not had the lease yet
}

// Get reads the lease.
func (t *tenureLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := t.Interface.Get(ctx)
	if err == nil && record.HolderIdentity != t.Identity() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.timer != nil {
			t.end()
		}
	}
	return record, raw, err
}

// Create makes the lease.
func (t *tenureLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return t.write(ctx, record, t.Interface.Create)
}

// Update acquires, renews or releases the lease.
func (t *tenureLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return t.write(ctx, record, t.Interface.Update)
}

func (t *tenureLock) write(
	ctx context.Context, record resourcelock.LeaderElectionRecord,
	write func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	begin := time.Now()
	err := write(ctx, record)
	if err != nil || record.HolderIdentity != t.Identity() {
		return err
	}
	left := t.lease - time.Since(begin)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		t.timer = time.AfterFunc(left, t.end)
		return nil
	}
	t.timer.Reset(left)
	return nil
}

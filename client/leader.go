// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election names the lease by which copies of a component agree on one of them.
type Election struct {
	Namespace string // default kube-system
	Name      string
	Identity  string // unique among the copies
	// Lease is for how long a leader that went silent is believed to live (default 15 s). A leader that cannot renew its lease gives up
	// after Deadline (default two thirds of Lease), and all try every Retry (default 2/15 of Lease).
	Lease, Deadline, Retry time.Duration
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

// Lead waits until this copy is the leader and then runs work. It returns when work has ended: with work's error, or
// ErrNotLeader when the lease was lost, which ends work's context. When ctx ends, the lease is given back after work.
func (c *Client) Lead(ctx context.Context, e Election, work func(ctx context.Context) error) error {
	e = e.Default()
	t := &term{done: make(chan error, 1)}
	// The lease is held until work has ended, also when ctx ends first.
	hold, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}, Client: c.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		},
		LeaseDuration: e.Lease, RenewDeadline: e.Deadline, RetryPeriod: e.Retry,
		ReleaseOnCancel: true, Name: e.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				t.lead(ctx, held, work)
				release()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect leader %s/%s: %w", e.Namespace, e.Name, err)
	}
	defer context.AfterFunc(ctx, func() {
		if t.state.Load() != leading { // else work ends first, by its own context
			release()
		}
	})()
	elector.Run(hold)
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
	done  chan error // has room for the result
}

// lead runs work until it ends by itself, the lease is lost or ctx ends.
func (t *term) lead(ctx, held context.Context, work func(context.Context) error) {
	if !t.state.CompareAndSwap(waiting, leading) {
		return
	}
	own, cancel := context.WithCancel(held)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	err := work(own)
	if held.Err() != nil && ctx.Err() == nil { // the elector gave up: nobody releases the lease before work has ended
		err = errors.Join(ErrNotLeader, err)
	}
	t.state.Store(over)
	t.done <- err
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaseSeconds is how long others trust a lease that is not renewed, at the usual interval of 10 s.
const leaseSeconds = 40

// leases renews the node's lease until ctx is done.
func (k *Keeper) leases(ctx context.Context) {
	every := k.cfg.LeaseEvery
	if every == 0 {
		every = 10 * time.Second
	}
	var have *coordinationv1.Lease
	var last time.Time // of the last renewal
	wait := time.Duration(0)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if k.removed.Load() {
			have = nil
			wait = every
			timer.Reset(wait)
			continue
		}
		got, err := k.renew(ctx, have, every)
		have = got
		now := time.Now().Round(0) // by the wall clock: the machine may have slept
		if err == nil && !last.IsZero() && now.Sub(last) > 2*every {
			err = k.back(ctx)
		}
		wait = every
		if err != nil {
			if ctx.Err() == nil {
				k.cfg.Log.Warn("renew node lease", "node", k.name, "err", err)
			}
			wait = min(every, time.Second)
		} else {
			last = now
		}
		timer.Reset(wait)
	}
}

// back repairs the status after the node was silent: others may have written Ready=Unknown, and the watch, which would
// say so, comes back later than the lease.
func (k *Keeper) back(ctx context.Context) error {
	_, err := k.read(ctx)
	if apierrors.IsNotFound(err) {
		return nil // the watch reports that it is gone
	}
	if err != nil {
		return err
	}
	k.Changed()
	if k.cfg.Back != nil {
		k.cfg.Back(ctx)
	}
	return nil
}

// callLimit is how long one request about the Node object or its lease may take: a connection whose other end is gone
// may be silent for much longer.
const callLimit = 10 * time.Second

// renew writes the lease; have is nil when it is not known. It returns what is known now.
func (k *Keeper) renew(
	ctx context.Context, have *coordinationv1.Lease, every time.Duration,
) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	api := k.cfg.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NowMicro()
	if have == nil {
		got, err := api.Get(ctx, k.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			got, err = api.Create(ctx, k.lease(now, every), metav1.CreateOptions{})
			if err != nil {
				return nil, fmt.Errorf("create lease: %w", err)
			}
			return got, nil
		case err != nil:
			return nil, fmt.Errorf("read lease: %w", err)
		}
		have = got
	}
	next := have.DeepCopy()
	next.Spec.RenewTime = &now
	fresh := k.lease(now, every)
	next.Spec.HolderIdentity = fresh.Spec.HolderIdentity
	next.Spec.LeaseDurationSeconds = fresh.Spec.LeaseDurationSeconds
	if len(fresh.OwnerReferences) > 0 {
		next.OwnerReferences = fresh.OwnerReferences
	}
	got, err := api.Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update lease: %w", err) // read it again: it may have been deleted or changed
	}
	return got, nil
}

func (k *Keeper) lease(now metav1.MicroTime, every time.Duration) *coordinationv1.Lease {
	name := k.name
	seconds := int32(max(leaseSeconds, 4*every/time.Second)) // minutes at most
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	if n := k.current.Load(); n != nil {
		l.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1",
			Kind:       "Node",
			Name:       name,
			UID:        n.UID,
		}}
	}
	return l
}

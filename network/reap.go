// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"

	"keelson/lib/keylock"
	"keelson/lib/signal"
)

// reaper deletes links of pods in the background, because that is slow, and then frees their addresses.
type reaper struct {
	remove func(link string) error // of both ends
	leases *leases
	log    *slog.Logger

	wake    signal.Signal // waiting is not empty
	turns   keylock.Locks // by link: a new link of the name is not made while the old one is deleted
	mu      sync.Mutex    // guards all fields below
	waiting []string      // links to be deleted
	// going are the links in waiting or being deleted, with the addresses that are free once the link is deleted.
	going map[string][]netip.Addr
}

func newReaper(remove func(link string) error, leases *leases, log *slog.Logger) *reaper {
	return &reaper{
		remove: remove,
		leases: leases,
		log:    log,
		wake:   signal.New(),
		going:  map[string][]netip.Addr{},
	}
}

// deleteUnleased queues those of this network's links that have no lease: an Attach or Detach was interrupted.
func (r *reaper) deleteUnleased(links []string) {
	known := r.leases.byLink()
	for _, name := range links {
		if known[name] == nil {
			r.deleteLater(name)
		}
	}
}

// deleteLater queues a link, whose addresses leases.drop has given to it.
func (r *reaper) deleteLater(name string, addrs ...netip.Addr) {
	r.mu.Lock()
	r.waiting = append(r.waiting, name)
	r.going[name] = addrs
	r.mu.Unlock()
	r.wake.Notify()
}

// run deletes queued links until ctx is done.
func (r *reaper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake.C():
			r.deleteWaiting()
		}
	}
}

// deleteWaiting deletes the queued links; false when there were none.
func (r *reaper) deleteWaiting() bool {
	r.mu.Lock()
	names := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	for _, name := range names {
		r.finish(name)
	}
	return len(names) > 0
}

// finish deletes one queued link, unless that was done, and frees its addresses.
func (r *reaper) finish(name string) {
	defer r.turns.Lock(name)()
	r.mu.Lock()
	addrs, still := r.going[name]
	r.mu.Unlock()
	if !still {
		return
	}
	if err := r.remove(name); err != nil {
		r.log.Warn("link not deleted", "link", name, "error", err)
	}
	r.mu.Lock()
	delete(r.going, name)
	r.mu.Unlock()
	r.leases.free(name, addrs)
}

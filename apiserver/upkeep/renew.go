// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"maps"
	"time"

	"keelson/store"
)

// renewalLook is how often ServersRenew looks at the keys.
const renewalLook = 500 * time.Millisecond

// ServersRenew reports whether an API server serves st: it waits until one renews its key, for leaseTTL at most. A
// server that starts calls it before it has a key of its own.
func ServersRenew(ctx context.Context, st store.Store) (bool, error) {
	first, err := leaseRevisions(ctx, st)
	if err != nil || len(first) == 0 {
		return false, err
	}
	tick := time.NewTicker(renewalLook)
	defer tick.Stop()
	limit := time.NewTimer(leaseTTL)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-limit.C:
			return false, nil
		case <-tick.C:
		}
		now, err := leaseRevisions(ctx, st)
		if err != nil {
			return false, err
		}
		for key := range first { // removed: its server has ended
			if _, kept := now[key]; !kept {
				delete(first, key)
			}
		}
		if !maps.Equal(now, first) {
			return true, nil
		}
	}
}

// leaseRevisions are the revisions of the servers' keys.
func leaseRevisions(ctx context.Context, st store.Store) (map[string]int64, error) {
	page, err := st.List(ctx, store.Range{Prefix: leasesPrefix})
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, kv := range page.Items {
		out[kv.Key] = kv.Revision
	}
	return out, nil
}

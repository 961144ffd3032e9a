// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"keelson/store"
)

// leaseStore lists the keys that at returns for the time since its start.
type leaseStore struct {
	store.Store
	begin time.Time
	at    func(time.Duration) []store.KV
}

func (s leaseStore) List(context.Context, store.Range) (store.Page, error) {
	return store.Page{Items: s.at(time.Since(s.begin))}, nil
}

// TestServersRenew: only a server that renews its key, or creates one, is running.
func TestServersRenew(t *testing.T) {
	dead := store.KV{Key: leasesPrefix + "192.0.2.1", Revision: 7}
	live := func(after time.Duration) store.KV {
		return store.KV{Key: leasesPrefix + "192.0.2.2", Revision: 10 + int64(after/leaseRenewal)}
	}
	for what, c := range map[string]struct {
		at    func(time.Duration) []store.KV
		want  bool
		after time.Duration
	}{
		"none": {at: func(time.Duration) []store.KV { return nil }},
		"dead": {at: func(time.Duration) []store.KV { return []store.KV{dead} }, after: leaseTTL},
		"dead, removed by no server that is known": {
			at: func(after time.Duration) []store.KV {
				if after > leaseRenewal {
					return nil
				}
				return []store.KV{dead}
			},
			after: leaseTTL,
		},
		"dead and live": {
			at:    func(after time.Duration) []store.KV { return []store.KV{dead, live(after)} },
			want:  true,
			after: leaseRenewal,
		},
		"one that starts": {
			at: func(after time.Duration) []store.KV {
				if after > 0 {
					return []store.KV{dead, live(after)}
				}
				return []store.KV{dead}
			},
			want:  true,
			after: renewalLook,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			got, err := ServersRenew(t.Context(), leaseStore{begin: begin, at: c.at})
			if took := time.Since(begin); got != c.want || err != nil || took != c.after {
				t.Errorf("%s: %v, %v after %s; want %v after %s", what, got, err, took, c.want, c.after)
			}
		})
	}
}

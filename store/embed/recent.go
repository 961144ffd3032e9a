// SPDX-License-Identifier: Apache-2.0

package embed

import "keelson/store"

// recent remembers the latest version of keys written a moment ago, so that the next write of the same key (a new pod
// is bound, then runs) need not ask the engine. It belongs to the committer. Two generations bound it: when the young
// one is full it becomes the old one, and the old one goes.
type recent struct {
	young, old map[string]store.Event
	bytes      int // of young
}

const recentBytes = 2 << 20 // a generation

func (r *recent) put(e store.Event) {
	if r.bytes > recentBytes || r.young == nil {
		r.old = r.young
		r.young = map[string]store.Event{}
		r.bytes = 0
	}
	e.Prev = nil
	r.young[e.KV.Key] = e
	r.bytes += len(e.KV.Key) + len(e.KV.Value) + 100
}

// get returns the latest version of key, if it is remembered; found is false for a tombstone.
func (r *recent) get(key string) (kv store.KV, found, known bool) {
	e, ok := r.young[key]
	if !ok {
		if e, ok = r.old[key]; !ok {
			return store.KV{}, false, false
		}
	}
	if e.Type == store.Deleted {
		return store.KV{Key: key, Revision: e.KV.Revision}, false, true
	}
	return e.KV, true, true
}

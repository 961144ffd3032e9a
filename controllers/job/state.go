// SPDX-License-Identifier: Apache-2.0

package job

import (
	"maps"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// stateStore is the controller's state about jobs in addition to the cache. It may be lost: a new process has caches
// that include its writes, and starts with the shortest back-off.
type stateStore struct {
	mu  sync.Mutex
	all map[types.UID]*jobState
}

type jobState struct {
	// lastWritten is the resourceVersion of the last status write: an older job in the cache has outdated counters.
	lastWritten string
	// finalizerRemoved are the pods whose finalizer was removed, while the cache still shows it.
	finalizerRemoved map[types.UID]struct{}
	failures         backoffRecord
	// batchSize is the size of the last successful batch of creations.
	batchSize int
}

func newStateStore() *stateStore { return &stateStore{all: map[types.UID]*jobState{}} }

// update calls f with the state of a job.
func (m *stateStore) update(job types.UID, f func(r *jobState)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[job]
	if r == nil {
		r = &jobState{finalizerRemoved: map[types.UID]struct{}{}}
		m.all[job] = r
	}
	f(r)
}

// get is a copy of the state of j.
func (m *stateStore) get(j *batchv1.Job) (r jobState) {
	m.update(j.UID, func(known *jobState) {
		r = *known
		r.finalizerRemoved = maps.Clone(known.finalizerRemoved)
	})
	return r
}

// cacheStale reports whether j is older than the controller's last write.
func (r jobState) cacheStale(j *batchv1.Job) bool {
	if r.lastWritten == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(j.ResourceVersion, r.lastWritten)
	return err == nil && order < 0
}

// removalObserved records that the cache shows p without the finalizer, and reports whether the controller had removed
// it.
func (m *stateStore) removalObserved(job types.UID, p *corev1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[job]
	if r == nil {
		return false
	}
	_, ours := r.finalizerRemoved[p.UID]
	delete(r.finalizerRemoved, p.UID)
	return ours
}

func (m *stateStore) remove(job types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, job)
}

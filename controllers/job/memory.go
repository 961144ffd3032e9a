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

// memory is the controller's state about jobs in addition to the cache. It may be lost: a new process has caches that include its writes,
// and starts with the shortest back-off.
type memory struct {
	mu  sync.Mutex
	all map[types.UID]*recollection
}

type recollection struct {
	// wrote is the resourceVersion of the last status write: an older job in the cache has outdated counters.
	wrote string
	// freed are the pods whose finalizer was removed, while the cache still shows it.
	freed    map[types.UID]struct{}
	failures failures
	// pace is the size of the last successful batch of creations.
	pace int
}

func newMemory() *memory { return &memory{all: map[types.UID]*recollection{}} }

// with calls f with the state of a job.
func (m *memory) with(job types.UID, f func(r *recollection)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[job]
	if r == nil {
		r = &recollection{freed: map[types.UID]struct{}{}}
		m.all[job] = r
	}
	f(r)
}

// recall is a copy of the state of j.
func (m *memory) recall(j *batchv1.Job) (r recollection) {
	m.with(j.UID, func(known *recollection) {
		r = *known
		r.freed = maps.Clone(known.freed)
	})
	return r
}

// ahead reports whether j is older than the controller's last write.
func (r recollection) ahead(j *batchv1.Job) bool {
	if r.wrote == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(j.ResourceVersion, r.wrote)
	return err == nil && order < 0
}

// seen records that the cache shows p without the finalizer, and reports whether the controller had removed it.
func (m *memory) seen(job types.UID, p *corev1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[job]
	if r == nil {
		return false
	}
	_, ours := r.freed[p.UID]
	delete(r.freed, p.UID)
	return ours
}

func (m *memory) forget(job types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, job)
}

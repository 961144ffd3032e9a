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

// memory is what the controller knows of jobs beyond what the cache shows. All of it may be lost: a new process starts with
// caches that are not behind its own writes, and with the shortest back-off.
type memory struct {
	mu  sync.Mutex
	all map[types.UID]*recollection
}

type recollection struct {
	// wrote is the resourceVersion of the last status written: an older job in the cache has counters that were true once.
	wrote string
	// freed are the pods that have lost their finalizer and that the cache shows with it.
	freed    map[types.UID]struct{}
	failures failures
	// pace is the size of the batch of creations that last went well.
	pace int
}

func newMemory() *memory { return &memory{all: map[types.UID]*recollection{}} }

// with calls f with what is known about a job.
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

// recall is a copy of what is known about j.
func (m *memory) recall(j *batchv1.Job) (r recollection) {
	m.with(j.UID, func(known *recollection) {
		r = *known
		r.freed = maps.Clone(known.freed)
	})
	return r
}

// ahead reports whether j is older than what the controller has written itself.
func (r recollection) ahead(j *batchv1.Job) bool {
	if r.wrote == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(j.ResourceVersion, r.wrote)
	return err == nil && order < 0
}

// seen notes that the cache shows p without the finalizer, and reports whether it was the controller that took it.
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

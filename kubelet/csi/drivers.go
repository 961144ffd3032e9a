// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"maps"
	"slices"
	"sync"
)

// drivers are the registered drivers, and the pods that wait for others. Its lock is taken after Mounter's.
type drivers struct {
	mu      sync.Mutex
	byName  map[string]*driver
	waiting map[string]map[string]bool // driver -> pods that wait for it
}

func newDrivers() *drivers {
	return &drivers{byName: map[string]*driver{}, waiting: map[string]map[string]bool{}}
}

// get returns the driver of that name; nil: none is registered now.
func (ds *drivers) get(name string) *driver {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.byName[name]
}

// all returns a copy of the drivers, by name.
func (ds *drivers) all() map[string]*driver {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return maps.Clone(ds.byName)
}

// await is get for a pod, which waits for a driver that is not registered; then it returns an error.
func (ds *drivers) await(name, uid string) (*driver, error) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if d := ds.byName[name]; d != nil {
		return d, nil
	}
	if ds.waiting[name] == nil {
		ds.waiting[name] = map[string]bool{}
	}
	ds.waiting[name][uid] = true
	return nil, missing(name)
}

// add registers a driver, and returns the one that had its name; nil: none had.
func (ds *drivers) add(d *driver) (old *driver) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	old = ds.byName[d.name]
	ds.byName[d.name] = d
	return old
}

// replace puts the driver next, which may be nil, in the place of d, unless another one has it by now. It reports
// whether it did.
func (ds *drivers) replace(d, next *driver) bool {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.byName[d.name] != d {
		return false
	}
	delete(ds.byName, d.name)
	if next != nil {
		ds.byName[d.name] = next
	}
	return true
}

// waiters returns the pods that wait for a driver. They wait no more.
func (ds *drivers) waiters(name string) []string {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	uids := slices.Collect(maps.Keys(ds.waiting[name]))
	delete(ds.waiting, name)
	return uids
}

// forget forgets that a pod waits.
func (ds *drivers) forget(uid string) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for name, uids := range ds.waiting {
		if delete(uids, uid); len(uids) == 0 {
			delete(ds.waiting, name)
		}
	}
}

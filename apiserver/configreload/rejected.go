// SPDX-License-Identifier: Apache-2.0

package configreload

import (
	"maps"
	"slices"
	"sync"
)

// Rejection says why the content of a configuration file is not in use.
type Rejection struct {
	Name  string `json:"name"` // of the configuration, such as authentication
	File  string `json:"file"`
	Error string `json:"error"`
}

// Rejected are the configurations whose previous content stays in use because the present one is wrong. Several Files
// may share it.
type Rejected struct {
	mu     sync.Mutex
	byName map[string]Rejection
}

// set records how the last reload of a file went.
func (r *Rejected) set(f *file, err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.byName, f.name)
		return
	}
	if r.byName == nil {
		r.byName = map[string]Rejection{}
	}
	r.byName[f.name] = Rejection{Name: f.name, File: f.path, Error: err.Error()}
}

// List returns them by name.
func (r *Rejected) List() []Rejection {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Rejection{}
	for _, name := range slices.Sorted(maps.Keys(r.byName)) {
		out = append(out, r.byName[name])
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package policy

import "sync/atomic"

// Set holds the policies in effect. It may be read while they change. The zero value is empty.
type Set struct{ list atomic.Pointer[[]*Policy] }

// Use replaces the policies. The caller must not modify list afterwards.
func (s *Set) Use(list []*Policy) { s.list.Store(&list) }

// All returns the policies in effect. Read only.
func (s *Set) All() []*Policy {
	if l := s.list.Load(); l != nil {
		return *l
	}
	return nil
}

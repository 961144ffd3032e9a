// SPDX-License-Identifier: Apache-2.0

package policy

import "sync/atomic"

// Set are the policies in effect, which change while others read them. The zero value has none.
type Set struct{ list atomic.Pointer[[]*Policy] }

// Use replaces them; list is not modified from then on.
func (s *Set) Use(list []*Policy) { s.list.Store(&list) }

// All are the policies in effect. Read only.
func (s *Set) All() []*Policy {
	if l := s.list.Load(); l != nil {
		return *l
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"keelson/api/kind"
)

// mostUpdaters is how many entries of updates an object may have before the oldest are merged, which is left to the
// long way.
const mostUpdaters = 10

// track does what Update promises, the short way: it compares the two Go values along the plan and touches only the
// entries that own something that changed. errLongWay: nothing was done.
func (m *Manager) track(live, obj kind.Object, manager string) error {
	if m.plan == nil {
		return errLongWay
	}
	entries := obj.GetManagedFields()
	if live != nil {
		was := live.GetManagedFields()
		if len(was) == 0 || m.sub == "" && entries != nil && !sameEntries(entries, was) || !m.known(was) {
			return errLongWay
		}
		entries = was
	} else if entries != nil {
		return errLongWay
	}
	old := m.empty
	if live != nil {
		old = reflect.ValueOf(live)
	}
	changes, err := m.plan.compare(&node{}, side{old, true}, side{reflect.ValueOf(obj), true})
	if err != nil {
		return err
	}
	changes.changed = strip(m.filter(changes.changed))
	changes.removed = strip(m.filter(changes.removed))
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second)) // as it is stored: what is cached must be equal to it
	if live == nil {
		return m.trackNew(obj, changes.changed, manager, now)
	}
	if changes.changed == nil && changes.removed == nil {
		obj.SetManagedFields(entries)
		return nil
	}
	entries, err = m.reown(entries, changes, manager, now)
	if err != nil {
		return err
	}
	obj.SetManagedFields(entries)
	return nil
}

// sameEntries reports whether a client sent back the entries it got.
func sameEntries(a, b []metav1.ManagedFieldsEntry) bool {
	if !SameExceptTimes(a, b) {
		return false
	}
	for i := range a {
		if !a[i].Time.Equal(b[i].Time) {
			return false
		}
	}
	return true
}

// known reports whether all entries are of this version and their number is far from the limit.
func (m *Manager) known(entries []metav1.ManagedFieldsEntry) bool {
	updates := 0
	for i := range entries {
		e := &entries[i]
		if e.APIVersion != m.version || e.FieldsType != "FieldsV1" || e.FieldsV1 == nil || e.Manager == "" {
			return false
		}
		if e.Operation == metav1.ManagedFieldsOperationUpdate {
			updates++
		}
	}
	return updates < mostUpdaters
}

// trackNew gives a new object's fields to its creator.
func (m *Manager) trackNew(obj kind.Object, owned *node, manager string, now metav1.Time) error {
	if owned == nil {
		obj.SetManagedFields(nil)
		return nil
	}
	e := m.entry(manager, now)
	e.FieldsV1 = &metav1.FieldsV1{}
	e.FieldsV1.SetRawBytes(owned.appendJSON(make([]byte, 0, 1024)))
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{e})
	return nil
}

func (m *Manager) entry(manager string, now metav1.Time) metav1.ManagedFieldsEntry {
	if manager == "" {
		manager = "unknown"
	}
	return metav1.ManagedFieldsEntry{
		Manager:     manager,
		Operation:   metav1.ManagedFieldsOperationUpdate,
		APIVersion:  m.version,
		Time:        &now,
		FieldsType:  "FieldsV1",
		Subresource: m.sub,
	}
}

// reown takes what changed away from its owners and gives it to manager.
func (m *Manager) reown(
	entries []metav1.ManagedFieldsEntry, c changes, manager string, now metav1.Time,
) ([]metav1.ManagedFieldsEntry, error) {
	d := &difference{changed: c.changed.json(), removed: c.removed.json()}
	own := m.entry(manager, now)
	out := make([]metav1.ManagedFieldsEntry, 0, len(entries)+1)
	found := false
	for _, entry := range entries {
		mine := entry.Manager == own.Manager && entry.Operation == own.Operation && entry.Subresource == own.Subresource
		if mine {
			found = true
			if d.changed != "" {
				entry.Time = own.Time
			}
		}
		owned := entry.FieldsV1.GetRawBytes()
		left, err := m.shares.after(owned, d, mine)
		switch {
		case err != nil:
			return nil, err
		case left == "":
			continue
		case left != string(owned):
			entry.FieldsV1 = fieldsOf(left)
		}
		out = append(out, entry)
	}
	if !found && d.changed != "" {
		own.FieldsV1 = fieldsOf(d.changed)
		out = append(out, own)
	}
	if len(out) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(out, inOrder)
	return out, nil
}

func fieldsOf(json string) *metav1.FieldsV1 {
	f := &metav1.FieldsV1{}
	f.SetRawString(json)
	return f
}

// difference is what a write changed and removed, as managedFields write sets; "" is nothing.
type difference struct{ changed, removed string }

// shares remembers how entries came out of changes: the pods of one workload all go through the same few.
type shares struct {
	mu    sync.Mutex
	known map[share]string
}

type share struct {
	owned string
	difference
	mine bool
}

const (
	mostShares  = 512
	widestShare = 8 << 10 // bytes; what is larger is worked out each time
)

// after is what an entry that owned has left after d, "" if nothing; mine: the entry is the writer's.
func (s *shares) after(owned []byte, d *difference, mine bool) (string, error) {
	s.mu.Lock()
	left, ok := s.known[share{string(owned), *d, mine}] // makes no string
	s.mu.Unlock()
	if ok {
		return left, nil
	}
	k := share{string(owned), *d, mine}
	left, err := workOut(k)
	if err != nil || len(owned)+len(d.changed)+len(d.removed) > widestShare {
		return left, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= mostShares {
		s.known = map[share]string{}
	}
	s.known[k] = left
	return left, nil
}

func workOut(k share) (string, error) {
	var sets [3]*fieldpath.Set
	for i, text := range []string{k.owned, k.changed, k.removed} {
		sets[i] = &fieldpath.Set{}
		if text == "" {
			continue
		}
		if err := sets[i].FromJSON(strings.NewReader(text)); err != nil {
			return "", errors.Join(errLongWay, err)
		}
	}
	owned := sets[0]
	changed := sets[1]
	removed := sets[2]
	left := owned.Difference(changed).Difference(removed)
	if k.mine {
		left = left.Union(changed)
	}
	switch {
	case left.Empty():
		return "", nil
	case left.Equals(owned):
		return k.owned, nil
	}
	b, err := left.ToJSON()
	if err != nil {
		return "", errors.Join(errLongWay, err)
	}
	return string(b), nil
}

// inOrder is the order of entries: applies first, then by time, in seconds, then by name.
func inOrder(a, b metav1.ManagedFieldsEntry) int {
	return cmp.Or(strings.Compare(string(a.Operation), string(b.Operation)), cmp.Compare(unix(a.Time), unix(b.Time)),
		strings.Compare(a.Manager, b.Manager), strings.Compare(a.APIVersion, b.APIVersion), strings.Compare(
			a.Subresource, b.Subresource))
}

func unix(t *metav1.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}

// filter drops what the subresource never changes.
func (m *Manager) filter(n *node) *node {
	for _, path := range m.reset {
		n = n.without(path, true)
	}
	return n
}

// unowned are the paths that no one owns.
var unowned = [][]string{
	{"apiVersion"},
	{"kind"},
	{"metadata"},
	{"metadata", "name"},
	{"metadata", "namespace"},
	{"metadata", "creationTimestamp"},
	{"metadata", "selfLink"},
	{"metadata", "uid"},
	{"metadata", "clusterName"},
	{"metadata", "generation"},
	{"metadata", "managedFields"},
	{"metadata", "resourceVersion"},
}

// strip drops the paths that no one owns, but not what is below them.
func strip(n *node) *node {
	for _, path := range unowned {
		n = n.without(path, false)
	}
	return n
}

// without returns the set without path, and without what is below it if deep. n itself stays as it is.
func (n *node) without(path []string, deep bool) *node {
	if n == nil {
		return nil
	}
	i := slices.IndexFunc(n.kids, func(k *node) bool {
		return len(k.name) == 2+len(path[0]) && k.name[2:] == path[0] && k.name[0] == 'f'
	})
	if i < 0 {
		return n
	}
	kid := n.kids[i]
	switch {
	case len(path) > 1:
		kid = kid.without(path[1:], deep)
	case deep || len(kid.kids) == 0:
		kid = nil
	default:
		kid = &node{name: kid.name, kids: kid.kids}
	}
	if kid == n.kids[i] {
		return n
	}
	out := &node{name: n.name, member: n.member, kids: slices.Clone(n.kids)}
	if kid == nil {
		out.kids = slices.Delete(out.kids, i, i+1)
	} else {
		out.kids[i] = kid
	}
	if len(out.kids) == 0 && !out.member {
		return nil
	}
	return out
}

// appendJSON writes the set below n as managedFields do.
func (n *node) appendJSON(b []byte) []byte {
	b = append(b, '{')
	for i, k := range n.kids {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		for j := range len(k.name) {
			if k.name[j] == '"' {
				b = append(b, '\\')
			}
			b = append(b, k.name[j])
		}
		b = append(b, `":`...)
		switch {
		case len(k.kids) == 0:
			b = append(b, "{}"...)
		case k.member:
			b = append(b, `{".":{},`...)
			at := len(b)
			b = k.appendJSON(b)
			b = append(b[:at], b[at+1:]...) // its own opening brace
		default:
			b = k.appendJSON(b)
		}
	}
	return append(b, '}')
}

// json is the set below n, "" for none.
func (n *node) json() string {
	if n == nil {
		return ""
	}
	return string(n.appendJSON(nil))
}

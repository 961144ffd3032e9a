// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/google/btree"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// item is an entry of a tree; indexValue is the indexed field's value, empty in the main tree.
type item struct {
	indexValue, key string
	kept            objects.Kept
	labels          *labelSet
}

func less(a, b item) bool {
	if c := cmp.Compare(a.indexValue, b.indexValue); c != 0 {
		return c < 0
	}
	return a.key < b.key
}

const degree = 32

// forest has a resource's objects in key order, and one index per indexed field.
type forest struct {
	main    *btree.BTreeG[item]
	indexes map[string]*index
}

// trees are the current state of a resource.
type trees struct {
	forest
	labels labelSets
	bytes  int // stored bytes of all objects
	// decodeErrors has the decoding error of keys without an entry. Such an object must not look absent: a client could
	// delete its dependents.
	decodeErrors map[string]error
}

type index struct {
	value func(kind.Object) string
	tree  *btree.BTreeG[item]
}

func newTrees(indexed map[string]func(kind.Object) string) *trees {
	t := &trees{
		forest: forest{main: btree.NewG(degree, less), indexes: make(map[string]*index, len(indexed))},
		labels: labelSets{},
	}
	for name, value := range indexed {
		t.indexes[name] = &index{value, btree.NewG(degree, less)}
	}
	return t
}

// setDecodeError records a decoding error for the key's value; nil removes it.
func (t *trees) setDecodeError(key string, rev int64, err error) {
	if err == nil {
		delete(t.decodeErrors, key)
		return
	}
	if t.decodeErrors == nil {
		t.decodeErrors = map[string]error{}
	}
	t.decodeErrors[key] = objects.Unreadable(key, rev, err)
}

// checkComplete returns an error if a list of the prefix would lack unreadable objects; nil: it is complete.
func (t *trees) checkComplete(prefix string, resource schema.GroupResource) error {
	var keys []string
	for key := range t.decodeErrors {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	status := metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Name: "list", Group: resource.Group, Kind: resource.Resource},
	}
	var texts []string
	for _, key := range keys {
		text := t.decodeErrors[key].Error()
		texts = append(texts, text)
		status.Details.Causes = append(status.Details.Causes, metav1.StatusCause{
			Type:    metav1.CauseTypeUnexpectedServerResponse,
			Field:   key,
			Message: text,
		})
	}
	all := texts[0]
	if len(texts) > 1 {
		all = "[" + strings.Join(texts, ", ") + "]"
	}
	status.Message = "failed to read one or more " + resource.String() + " from the storage: " + all
	return &apierrors.StatusError{ErrStatus: status}
}

// find returns the key's entry, none if there is none.
func (t *trees) find(key string) (objects.Kept, error) {
	if err := t.decodeErrors[key]; err != nil {
		return objects.Kept{}, apierrors.NewInternalError(err)
	}
	return t.get(key).kept, nil
}

// replace replaces prev, the item that get returned, by cur; either may be none.
func (t *trees) replace(prev item, cur objects.Kept) {
	t.bytes += cur.Size() - prev.kept.Size()
	next := item{key: cur.Key(), kept: cur}
	if !cur.None() {
		next.labels = t.labels.take(cur.Labels(), prev.labels)
	}
	t.labels.release(prev.labels)
	switch {
	case !cur.None():
		t.main.ReplaceOrInsert(next)
	case !prev.kept.None():
		t.main.Delete(item{key: prev.key})
	}
	for _, ix := range t.indexes {
		ix.replace(prev, next)
	}
}

func (ix *index) replace(prev, cur item) {
	prev.indexValue = ix.of(prev.kept)
	cur.indexValue = ix.of(cur.kept)
	if !prev.kept.None() && (cur.kept.None() || cur.indexValue != prev.indexValue) {
		ix.tree.Delete(prev)
	}
	if !cur.kept.None() {
		ix.tree.ReplaceOrInsert(cur)
	}
}

// of is the indexed field's value, "" for none.
func (ix *index) of(kept objects.Kept) string {
	if kept.None() {
		return ""
	}
	return ix.value(kept.Entry().Object)
}

// get returns an empty item if the key does not exist.
func (f *forest) get(key string) item {
	it, _ := f.main.Get(item{key: key})
	return it
}

// clone returns the forest as it is now. It is never modified: both share their nodes until these change.
func (f *forest) clone() *forest {
	out := &forest{main: f.main.Clone(), indexes: make(map[string]*index, len(f.indexes))}
	for name, ix := range f.indexes {
		out.indexes[name] = &index{ix.value, ix.tree.Clone()}
	}
	return out
}

// span is a part of a forest: one key, the objects with one value of an indexed field, or all.
type span struct {
	key          string
	index, value string // index is "" for all
	prefix, from string // of the keys
}

// each visits a span in key order until visit returns false.
func (f *forest) each(s span, visit func(item) bool) {
	if s.key != "" {
		if it := f.get(s.key); !it.kept.None() && s.key >= s.from {
			visit(it)
		}
		return
	}
	tree := f.main
	if s.index != "" {
		tree = f.indexes[s.index].tree
	}
	tree.AscendGreaterOrEqual(item{indexValue: s.value, key: max(s.from, s.prefix)}, func(it item) bool {
		if it.indexValue != s.value || !strings.HasPrefix(it.key, s.prefix) {
			return false
		}
		return visit(it)
	})
}

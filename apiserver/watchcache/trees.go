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

// item is an entry of a tree; by is the indexed field's value, empty in the main tree.
type item struct {
	indexValue, key string
	kept            objects.Kept
}

func less(a, b item) bool {
	if c := cmp.Compare(a.indexValue, b.indexValue); c != 0 {
		return c < 0
	}
	return a.key < b.key
}

const degree = 32

// trees are a resource's objects in key order, and one index per indexed field.
type trees struct {
	main    *btree.BTreeG[item]
	bytes   int // stored bytes of all objects
	indexes map[string]*index
	// decodeErrors has the decoding error of keys without an entry. Such an object must not look absent: a client could
	// delete its dependents.
	decodeErrors map[string]error
}

type index struct {
	value func(kind.Object) string
	tree  *btree.BTreeG[item]
}

func newTrees(indexed map[string]func(kind.Object) string) *trees {
	t := &trees{main: btree.NewG(degree, less), indexes: make(map[string]*index, len(indexed))}
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
	return t.get(key), nil
}

// replace replaces prev by cur; either may be none.
func (t *trees) replace(prev, cur objects.Kept) {
	t.bytes += cur.Size() - prev.Size()
	switch {
	case !cur.None():
		t.main.ReplaceOrInsert(item{key: cur.Key(), kept: cur})
	case !prev.None():
		t.main.Delete(item{key: prev.Key()})
	}
	for _, ix := range t.indexes {
		ix.replace(prev, cur)
	}
}

func (ix *index) replace(prev, cur objects.Kept) {
	if !prev.None() {
		was := ix.of(prev)
		if cur.None() || ix.of(cur) != was {
			ix.tree.Delete(item{indexValue: was, key: prev.Key()})
		}
	}
	if !cur.None() {
		ix.tree.ReplaceOrInsert(item{indexValue: ix.of(cur), key: cur.Key(), kept: cur})
	}
}

// of is the indexed field's value, "" for none.
func (ix *index) of(kept objects.Kept) string {
	if kept.None() {
		return ""
	}
	return ix.value(kept.Entry().Object)
}

// get returns none if the key does not exist.
func (t *trees) get(key string) objects.Kept {
	it, _ := t.main.Get(item{key: key})
	return it.kept
}

// ascend visits tree from (by, from) while by is the same and the key has the prefix.
func ascend(tree *btree.BTreeG[item], indexValue, prefix, from string, visit func(*objects.Entry) bool) {
	tree.AscendGreaterOrEqual(item{indexValue: indexValue, key: max(from, prefix)}, func(it item) bool {
		if it.indexValue != indexValue || len(it.key) < len(prefix) || it.key[:len(prefix)] != prefix {
			return false
		}
		return visit(it.kept.Entry())
	})
}

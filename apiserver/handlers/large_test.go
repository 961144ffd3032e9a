// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
	"keelson/store"
)

// tight is a store that takes values up to a size, as etcd does.
type tight struct {
	store.Store
	most int
}

var errTooLarge = fmt.Errorf("of etcd: %w", store.ErrTooLarge)

func (s tight) Create(ctx context.Context, key string, value []byte) (store.Written, error) {
	if len(value) > s.most {
		return store.Written{}, errTooLarge
	}
	return s.Store.Create(ctx, key, value)
}

func (s tight) Update(ctx context.Context, key string, value []byte, expected int64) (store.Written, error) {
	if len(value) > s.most {
		return store.Written{}, errTooLarge
	}
	return s.Store.Update(ctx, key, value, expected)
}

// TestLargeObjects: an object that is too large with its field owners is stored without them, unless it was applied.
func TestLargeObjects(t *testing.T) {
	const most = 64 << 10
	running := servertest.Start(t, func(c *servertest.Setup) { c.Store = tight{c.Store, most} })
	keys := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"a-key-of-some-length-%04d":"v"`, i)
		}
		return b.String()[1:]
	}
	fits := keys(most / 100)
	large := keys(most / 25) // with its owners; not even without them
	object := func(name, data string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{` + data + `}}`
	}
	const merge, patch = "application/merge-patch+json", "application/apply-patch+yaml"
	half := keys(most / 45) // without its owners alone
	for _, c := range []struct {
		what, method, path, body, media string
		code                            int
		owned                           bool
	}{
		{"create what fits", "POST", servertest.MapsPath, object("a", fits), "", 201, true},
		{"create", "POST", servertest.MapsPath, object("b", half), "", 201, false},
		{"create too much", "POST", servertest.MapsPath, object("c", large), "", 500, false},
		{"update", "PUT", servertest.MapsPath + "/a", object("a", half), "", 200, false},
		{"patch", "PATCH", servertest.MapsPath + "/b", `{"data":{"x":"y"}}`, merge, 200, false},
		{"update too much", "PUT", servertest.MapsPath + "/a", object("a", large), "", 500, false},
		{"apply", "PATCH", servertest.MapsPath + "/b?fieldManager=m", object("b", `"x":"y"`), patch, 500, false},
	} {
		got := running.Call(t, c.method, c.path, c.body, "Content-Type", c.media)
		var obj metav1.PartialObjectMetadata
		if got.Code < 300 {
			got.Into(t, &obj)
		}
		if got.Code != c.code || len(obj.ManagedFields) > 0 != c.owned {
			t.Errorf("%s: %d, %d owners, want %d, %v: %s", c.what, got.Code, len(obj.ManagedFields), c.code, c.owned,
				servertest.Short(got.Body))
		}
	}
}

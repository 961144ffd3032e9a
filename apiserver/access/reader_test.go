// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/servertest"
	"keelson/store"
)

// asked is a store that counts the reads of one key, and the questions for its revision that precede them.
type asked struct {
	store.Store
	times *atomic.Int32
}

func (s asked) Revision(ctx context.Context) (int64, error) {
	s.times.Add(1)
	return s.Store.Revision(ctx)
}

// TestCachedReadsCostTheStoreNothing: requests look for objects that are seldom there, as the ConfigMap of removed
// nodes. A consistent read for each would be a request to etcd.
func TestCachedReadsCostTheStoreNothing(t *testing.T) {
	var times atomic.Int32
	running := servertest.Start(t, func(c *servertest.Setup) { c.Store = asked{c.Store, &times} })
	configMaps := corev1.SchemeGroupVersion.WithResource("configmaps")
	get := func(read func(context.Context, string) error) int32 {
		before := times.Load()
		for range 100 {
			if err := read(t.Context(), "none"); !apierrors.IsNotFound(err) {
				t.Fatalf("got %v, want not found", err)
			}
		}
		return times.Load() - before
	}
	cached := get(func(ctx context.Context, name string) error {
		_, err := running.Data.Reader.Cached(ctx, configMaps, "kube-system", name)
		return err
	})
	if cached > 50 { // those of others
		t.Errorf("100 cached reads asked the store %d times", cached)
	}
	latest := get(func(ctx context.Context, name string) error {
		_, err := running.Data.Reader.Get(ctx, configMaps, "kube-system", name)
		return err
	})
	if latest < 100 {
		t.Errorf("100 consistent reads asked the store %d times", latest)
	}
}

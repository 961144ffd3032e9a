// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/gates"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
	"keelson/apiserver/watchcache"
	"keelson/store"
)

// storage is the watch cache over the store, with one resource per row.
type storage struct{ cache *watchcache.Cache }

func newStorage(st store.Store, log *slog.Logger) *storage {
	return &storage{watchcache.New(watchcache.Config{Store: st, Log: log})}
}

// open creates the storage of a row.
func (s *storage) open(row resources.Row) objects.Storage {
	k := row.Kind
	config := objects.Config{
		Resource:       k.GVR().GroupResource(),
		GVK:            k.GVK(),
		New:            k.New,
		Prefix:         row.StorePrefix(),
		Namespaced:     k.Namespaced,
		Fields:         k.Fields,
		Index:          row.Indexed,
		StoredVersions: k.StoredVersions,
		Default:        k.Default,
	}
	return s.cache.Resource(config)
}

func (s *storage) run(ctx context.Context, ready func()) error { return s.cache.Run(ctx, ready) }

// builtin maps key prefixes to built-in resources.
var builtin = sync.OnceValue(func() map[string]schema.GroupResource {
	out := map[string]schema.GroupResource{rangeAllocations.Prefix: rangeAllocations.Resource}
	for _, row := range resources.Table(gates.All()) {
		if row.View == nil && !row.Kind.CreateOnly && !row.Computed {
			gr := row.Kind.GVR().GroupResource()
			out[row.StorePrefix()] = gr
		}
	}
	return out
})

// ResourceOf returns the resource of a store key: a built-in one by its prefix, else a custom one, whose keys begin
// with group and resource.
func ResourceOf(key string) schema.GroupResource {
	one, rest, _ := strings.Cut(strings.TrimPrefix(key, objects.Root), "/")
	two, _, _ := strings.Cut(rest, "/")
	if gr, ok := builtin()[one+"/"+two]; ok {
		return gr
	}
	if gr, ok := builtin()[one]; ok {
		return gr
	}
	return schema.GroupResource{Group: one, Resource: two}
}

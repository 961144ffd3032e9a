// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// RangeAllocations is the storage of Kubernetes' record of allocated node ports. It is not a resource of the API.
var RangeAllocations = objects.Config{
	Resource: schema.GroupResource{Resource: "servicenodeportallocations"},
	GVK:      corev1.SchemeGroupVersion.WithKind("RangeAllocation"),
	New:      func() kind.Object { return &corev1.RangeAllocation{} },
	Prefix:   "ranges",
}

// builtin maps key prefixes to built-in resources.
var builtin = sync.OnceValue(func() map[string]schema.GroupResource {
	out := map[string]schema.GroupResource{RangeAllocations.Prefix: RangeAllocations.Resource}
	for _, row := range Table(gates.All()) {
		if row.View == nil && !row.Kind.CreateOnly && !row.Computed {
			gr := row.Kind.GVR().GroupResource()
			out[row.StorePrefix()] = gr
		}
	}
	return out
})

// OfKey returns the resource of a store key: a built-in one by its prefix, else a custom one, whose keys begin
// with group and resource.
func OfKey(key string) schema.GroupResource {
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

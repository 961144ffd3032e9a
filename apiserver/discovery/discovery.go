// SPDX-License-Identifier: Apache-2.0

// Package discovery serves the discovery documents: groups, versions and resources (/api, /apis and below), plain and
// aggregated. The API server mounts it and calls Set when the served resources change; the first request then builds
// the documents. It never touches storage.
package discovery

import (
	"cmp"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
)

// groupPriority orders the groups for clients; it also decides which group an ambiguous short name means. Groups of
// equal priority are ordered by name.
var groupPriority = map[string]int32{
	"":                             18000,
	"apiregistration.k8s.io":       17900,
	"apps":                         17800,
	"events.k8s.io":                17750,
	"authentication.k8s.io":        17700,
	"authorization.k8s.io":         17600,
	"autoscaling":                  17500,
	"batch":                        17400,
	"certificates.k8s.io":          17300,
	"networking.k8s.io":            17200,
	"policy":                       17100,
	"rbac.authorization.k8s.io":    17000,
	"storage.k8s.io":               16800,
	"admissionregistration.k8s.io": 16700,
	"apiextensions.k8s.io":         16700,
	"scheduling.k8s.io":            16600,
	"coordination.k8s.io":          16500,
	"node.k8s.io":                  16300,
	"discovery.k8s.io":             16200,
	"resource.k8s.io":              16200,
	"flowcontrol.apiserver.k8s.io": 16100,
	"storagemigration.k8s.io":      15800,
	"metrics.k8s.io":               100,
	"decisions.keelson.io":         90,
}

// versionPriority is the priority of versions in their groups, where it is not the default.
var versionPriority = map[schema.GroupVersion]int32{
	{Version: "v1"}:                                        1,
	{Group: "autoscaling", Version: "v2"}:                  30,
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: 21,
	{Group: "resource.k8s.io", Version: "v1"}:              21,
	{Group: "metrics.k8s.io", Version: "v1"}:               110,
	{Group: "metrics.k8s.io", Version: "v1beta1"}:          100, // metrics-server's
}

// Remote is a group version that another server serves.
type Remote struct {
	GV                             schema.GroupVersion
	GroupPriority, VersionPriority int32
	// Resources is that server's discovery; nil: not known yet.
	Resources *apidiscoveryv2.APIVersionDiscovery
}

// gvResources are the resources of one group version by name, or another server's discovery.
type gvResources struct {
	gv        schema.GroupVersion
	resources []*resources.Resource
	remote    *Remote
}

// The default priorities.
const (
	customPriority         = 1000
	defaultVersionPriority = 15
)

// Priority is the priority of a group version that this server serves: of the group, and of the version in its group.
func Priority(gv schema.GroupVersion) (group, version int32) {
	group = customPriority
	version = defaultVersionPriority
	if p, ok := groupPriority[gv.Group]; ok {
		group = p
	}
	if p, ok := versionPriority[gv]; ok {
		version = p
	}
	return group, version
}

// Documents are the discovery documents of the resources that are served now.
type Documents struct {
	missing http.Handler
	address string
	built   atomic.Pointer[func() (map[string]http.Handler, error)]
}

// New returns empty documents. missing handles unknown paths below /apis. address is the server's host and port; it may
// be empty.
func New(missing http.Handler, address string) *Documents {
	d := &Documents{missing: missing, address: address}
	d.Set(nil, nil)
	return d
}

// Set replaces the served resources. The documents are built when they are first requested.
func (d *Documents) Set(served []*resources.Resource, remotes []Remote) {
	build := sync.OnceValues(func() (map[string]http.Handler, error) {
		return documents(served, remotes, d.address)
	})
	d.built.Store(&build)
}

// ServeHTTP serves /api, /apis and below.
func (d *Documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	docs, err := (*d.built.Load())()
	if err != nil {
		wire.WriteError(w, r, err)
		return
	}
	if h, ok := docs[strings.TrimSuffix(r.URL.Path, "/")]; ok {
		h.ServeHTTP(w, r)
		return
	}
	d.missing.ServeHTTP(w, r)
}

// Mount registers the documents with mux.
func (d *Documents) Mount(mux *http.ServeMux) {
	for _, path := range []string{"/api", "/apis"} {
		mux.Handle(path, d)
		mux.Handle(path+"/", d)
	}
}

var v1 = schema.GroupVersion{Version: "v1"}

// documents builds every document, by path.
func documents(served []*resources.Resource, remotes []Remote, address string) (map[string]http.Handler, error) {
	out := map[string]http.Handler{}
	var core, named []gvResources
	for _, g := range grouped(served, remotes) {
		if g.gv.Group == "" {
			core = append(core, g)
		} else {
			named = append(named, g)
		}
	}
	for path, part := range map[string][]gvResources{"/api": core, "/apis": named} {
		doc, err := newRoot(path, part, address)
		if err != nil {
			return nil, err
		}
		out[path] = doc
	}
	out["/api"] = readOnly(out["/api"])
	for _, g := range core {
		// as in /api
		list := document(resourceList(g), schema.GroupVersionKind{Kind: "APIResourceList"})
		out["/api/"+g.gv.Version] = readOnly(list)
	}
	for _, g := range named {
		if g.remote != nil {
			continue // the aggregated server serves it
		}
		out["/apis/"+g.gv.String()] = readOnly(document(resourceList(g), v1.WithKind("APIResourceList")))
	}
	for _, group := range groups(named) {
		out["/apis/"+group.Name] = document(&group, v1.WithKind("APIGroup"))
	}
	return out, nil
}

// readOnly answers GET alone. In Kubernetes the documents of the API server's own router do so, those of the aggregator
// (/apis and the groups) answer every method.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			wire.WriteError(w, r, wire.MethodNotAllowed())
			return
		}
		h.ServeHTTP(w, r)
	})
}

// document serves one object in the encoding that the client accepts.
func document(obj runtime.Object, gvk schema.GroupVersionKind) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := wire.Negotiate(r, nil)
		if err != nil {
			wire.WriteError(w, r, err)
			return
		}
		wire.Write(w, r, http.StatusOK, obj, gvk, want)
	})
}

func grouped(served []*resources.Resource, remotes []Remote) []gvResources {
	byGV := map[schema.GroupVersion][]*resources.Resource{}
	for _, r := range served {
		gv := r.GVR().GroupVersion()
		byGV[gv] = append(byGV[gv], r)
	}
	out := make([]gvResources, 0, len(byGV)+len(remotes))
	priority := map[string]int32{}
	for i := range remotes {
		r := &remotes[i]
		delete(byGV, r.GV) // the other server has precedence
		out = append(out, gvResources{gv: r.GV, remote: r})
		priority[r.GV.Group] = max(priority[r.GV.Group], r.GroupPriority)
	}
	for gv, list := range byGV {
		slices.SortFunc(list, func(a, b *resources.Resource) int { return strings.Compare(a.Resource, b.Resource) })
		out = append(out, gvResources{gv: gv, resources: list})
		p, _ := Priority(gv)
		priority[gv.Group] = max(priority[gv.Group], p)
	}
	slices.SortFunc(out, func(a, b gvResources) int {
		return cmp.Or(cmp.Compare(priority[b.gv.Group], priority[a.gv.Group]), strings.Compare(a.gv.Group, b.gv.Group),
			cmp.Compare(b.versionPriority(), a.versionPriority()),
			-version.CompareKubeAwareVersionStrings(a.gv.Version, b.gv.Version))
	})
	return out
}

func (g gvResources) versionPriority() int32 {
	if g.remote != nil {
		return g.remote.VersionPriority
	}
	_, v := Priority(g.gv)
	return v
}

// groups lists the named groups with their versions, the preferred one first.
func groups(parts []gvResources) []metav1.APIGroup {
	var out []metav1.APIGroup
	for _, p := range parts {
		v := metav1.GroupVersionForDiscovery{GroupVersion: p.gv.String(), Version: p.gv.Version}
		if n := len(out); n > 0 && out[n-1].Name == p.gv.Group {
			out[n-1].Versions = append(out[n-1].Versions, v)
			continue
		}
		out = append(out, metav1.APIGroup{
			Name:             p.gv.Group,
			Versions:         []metav1.GroupVersionForDiscovery{v},
			PreferredVersion: v,
		})
	}
	return out
}

func resourceList(g gvResources) *metav1.APIResourceList {
	list := &metav1.APIResourceList{GroupVersion: g.gv.String(), APIResources: []metav1.APIResource{}}
	for _, res := range g.resources {
		main := metav1.APIResource{
			Name:         res.Resource,
			SingularName: res.Singular,
			Namespaced:   res.Namespaced,
			Kind:         res.GVK().Kind,
			Verbs:        res.Verbs(),
			ShortNames:   res.ShortNames,
			Categories:   res.Categories,
		}
		if res.Storage != nil && !res.Computed {
			main.StorageVersionHash = storageHash(res)
		}
		list.APIResources = append(list.APIResources, main)
		for _, s := range res.AllSubresources() {
			sub := metav1.APIResource{
				Name:       res.Resource + "/" + s.Name,
				Namespaced: res.Namespaced,
				Kind:       s.GVK.Kind,
				Verbs:      s.Verbs,
			}
			if s.GVK.GroupVersion() != g.gv {
				sub.Group = s.GVK.Group
				sub.Version = s.GVK.Version
			}
			list.APIResources = append(list.APIResources, sub)
		}
	}
	return list
}

// storageHash identifies the storage version without naming it, computed as in Kubernetes.
func storageHash(r *resources.Resource) string {
	stored := r.GVK()
	if r.Custom != nil {
		stored.Version = r.Custom.Stored
	}
	if r.View != nil {
		stored = schema.GroupVersionKind{Group: r.View.Of.Group, Version: "v1", Kind: stored.Kind}
		if stored.Kind == "HorizontalPodAutoscaler" {
			stored.Version = "v2"
		}
	}
	sum := sha256.Sum256([]byte(stored.Group + "/" + stored.Version + "/" + stored.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

func etag(b []byte) string { return fmt.Sprintf("%q", fmt.Sprintf("%X", sha512.Sum512(b))) }

// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Documents serves /openapi/v2 and /openapi/v3 for the currently served resources.
//
// A document is made when it is requested, and its compressed bytes are kept as long as there is room. Its hash is that
// of what it is made of, so that the index /openapi/v3 and a change of a definition make no document. Each custom
// resource is a piece of its own: when a definition changes, the pieces of the others are still there.
type Documents struct {
	version string
	commit  string
	builtIn []Resource
	cache   *cache
	archive *archive   // what the program brings
	making  sync.Mutex // one document is made at a time, because that takes many times its size
	state   atomic.Pointer[state]
}

// state is what the documents describe at one time. It is replaced, never modified.
type state struct {
	since time.Time
	v2    document
	v3    map[string]document // by the name below /openapi/v3/
	index []byte              // of /openapi/v3
}

// document is a document that can be made.
type document struct {
	name   string // "apis/apps/v1", or "" of v2
	hash   string // changes with the content
	pieces pieces
	// described is a sum of the built-in resources that it describes, for the archive.
	described func() string
}

// Remote is what an aggregated server publishes about its group version; unpublished parts are nil.
type Remote struct {
	GV schema.GroupVersion
	V3 *spec3.OpenAPI
	V2 *spec.Swagger
	// Sum changes with V3 and V2.
	Sum string
}

// New returns the documents of the built-in resources. version is the server's, "v1.37.2", commit that of its source:
// the hashes of documents change with both.
func New(version, commit string, fixed []Resource) *Documents {
	documents := &Documents{
		version: version,
		commit:  commit,
		builtIn: fixed,
		cache:   newCache(cacheBytes),
		archive: embeddedArchive(),
	}
	documents.Set(nil, nil)
	return documents
}

// Set replaces the resources in addition to the built-in ones.
func (d *Documents) Set(custom []Resource, remotes []Remote) {
	next := &state{since: time.Now(), v3: map[string]document{}}
	next.v2 = d.fixed("", protobufV2, d.builtIn, roots(d.builtIn), func() (any, error) {
		return Swagger(d.version, d.builtIn)
	})
	for gv, list := range byVersion(d.builtIn) {
		next.v3[path(gv)] = d.fixedV3(path(gv), list, nil)
	}
	for _, p := range roots(d.builtIn) {
		next.v3[p.key()] = d.fixedV3(p.key(), nil, []page{p})
	}
	for _, resources := range byResource(custom) {
		sum := resources[0].GVR.String() + " " + resources[0].Model.Sum
		key := path(resources[0].GVR.GroupVersion())
		doc, ok := next.v3[key]
		if !ok {
			doc = d.fixedV3(key, nil, nil)
		}
		next.v3[key] = doc.with(sum, d.piece("v3 "+sum, func() (any, error) { return d.v3(resources, nil) }))
		next.v2 = next.v2.with(sum, d.piece("v2 "+sum, func() (any, error) { return d.v2(resources) }))
	}
	for _, remote := range remotes {
		if remote.V3 != nil {
			key := path(remote.GV)
			next.v3[key] = document{
				name:   key,
				hash:   d.sum(key, remote.Sum),
				pieces: pieces{encoded(func() (any, error) { return remote.V3, nil })},
			}
		}
		if remote.V2 != nil && remote.V2.Paths != nil {
			next.v2 = next.v2.with(remote.Sum, encoded(func() (any, error) { return remote.ownV2(), nil }))
		}
	}
	next.index = index(next.v3)
	d.state.Store(next)
}

// fixedV3 is a v3 document without custom resources.
func (d *Documents) fixedV3(name string, list []Resource, pages []page) document {
	return d.fixed(name, protobufV3, list, pages, func() (any, error) { return d.v3(list, pages) })
}

// fixed is a document without custom resources: from the archive, if that describes the same, or as describe says.
func (d *Documents) fixed(name, protobuf string, list []Resource, pages []page, describe func() (any, error)) document {
	described := sync.OnceValue(func() string { return sumOf(list, pages) })
	made := d.piece("built-in "+protobuf+" "+name, describe)
	ready := func(form string) ([]byte, error) { return d.archive.read(name, form, described(), d.version) }
	return document{
		name:      name,
		hash:      d.sum(cmp.Or(name, "v2")),
		described: described,
		pieces: pieces{{
			json: func() ([]byte, error) {
				if b, err := ready(jsonForm); b != nil || err != nil {
					return b, err
				}
				return made.json()
			},
			protobuf: func() ([]byte, error) { return ready(protobuf) },
		}},
	}
}

// with adds a piece whose content changes with sum.
func (doc document) with(sum string, p piece) document {
	doc.hash = hash(doc.hash, sum)
	doc.pieces = append(slices.Clip(doc.pieces), p)
	return doc
}

// v3 describes resources and pages as OpenAPI v3.
func (d *Documents) v3(list []Resource, pages []page) (*spec3.OpenAPI, error) {
	swagger, err := build(d.version, list, pages, false)
	if err != nil {
		return nil, err
	}
	doc := openapiconv.ConvertV2ToV3(swagger)
	requireBodies(doc)
	return doc, nil
}

// v2 describes custom resources as OpenAPI v2, which has no defaults.
func (d *Documents) v2(list []Resource) (*spec.Swagger, error) {
	swagger, err := build(d.version, list, nil, true)
	if err != nil {
		return nil, err
	}
	swagger.Definitions = handler.PruneDefaults(swagger.Definitions)
	return swagger, nil
}

// ownV2 is the part of an aggregated server's document that describes its group version.
func (r Remote) ownV2() *spec.Swagger {
	out := *r.V2
	own := prefix(r.GV) + "/"
	out.Paths = &spec.Paths{Paths: maps.Clone(r.V2.Paths.Paths)}
	maps.DeleteFunc(out.Paths.Paths, func(name string, _ spec.PathItem) bool { return !strings.HasPrefix(name, own) })
	return &out
}

// piece is a piece whose compressed bytes are kept. key changes with the content.
func (d *Documents) piece(key string, describe func() (any, error)) piece {
	return piece{json: func() ([]byte, error) { return d.cache.plain(key, encoded(describe)) }}
}

// encoded is a description in JSON.
func encoded(describe func() (any, error)) piece {
	return piece{json: func() ([]byte, error) {
		doc, err := describe()
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(doc)
		if err != nil {
			return nil, fmt.Errorf("encode an OpenAPI document: %w", err)
		}
		return b, nil
	}}
}

// sum is a hash of parts of this version's documents.
func (d *Documents) sum(parts ...string) string {
	return hash(append([]string{d.version, d.commit}, parts...)...)
}

// hash is a hash of strings, in the form of the hashes of Kubernetes' documents.
func hash(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(sum, "%d:%s,", len(part), part) // a hash's Write never fails
	}
	return strings.ToUpper(hex.EncodeToString(sum.Sum(nil)))
}

// index is the response of /openapi/v3: where each document is.
func index(docs map[string]document) []byte {
	type place struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	all := struct {
		Paths map[string]place `json:"paths"`
	}{map[string]place{}}
	for name, doc := range docs {
		all.Paths[name] = place{doc.url()}
	}
	b, _ := json.Marshal(all) // strings can be encoded
	return b
}

// url is the address of a v3 document. With the hash, clients may keep it forever.
func (doc document) url() string {
	u := url.URL{Path: "/openapi/v3/" + doc.name, RawQuery: url.Values{"hash": {doc.hash}}.Encode()}
	return u.String()
}

// sumOf changes with what a document of built-in resources describes, apart from the content of their Go types.
func sumOf(list []Resource, pages []page) string {
	parts := []string{fmt.Sprint(list)}
	for _, p := range pages {
		parts = append(parts, p.path)
	}
	return hash(parts...)
}

// byResource groups custom resources with their subresources.
func byResource(list []Resource) [][]Resource {
	groups := map[schema.GroupVersionResource][]Resource{}
	for _, r := range list {
		groups[r.GVR] = append(groups[r.GVR], r)
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b []Resource) int {
		return strings.Compare(a[0].GVR.String(), b[0].GVR.String())
	})
}

// Mount registers /openapi/v2 and /openapi/v3 with mux.
func (d *Documents) Mount(mux *http.ServeMux) {
	mux.HandleFunc("/openapi/v2", func(w http.ResponseWriter, r *http.Request) {
		now := d.state.Load()
		d.serve(w, r, now.v2, now.since, formsV2)
	})
	mux.HandleFunc("/openapi/v3", func(w http.ResponseWriter, r *http.Request) {
		now := d.state.Load()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Etag", `"`+hash(string(now.index))+`"`)
		serveBytes(w, r, now.since, now.index)
	})
	mux.HandleFunc("/openapi/v3/", func(w http.ResponseWriter, r *http.Request) {
		now := d.state.Load()
		doc, ok := now.v3[strings.TrimPrefix(r.URL.Path, "/openapi/v3/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		d.serve(w, r, doc, now.since, formsV3)
	})
}

// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
)

const (
	aggregatedGroup   = "apidiscovery.k8s.io"
	aggregatedVersion = "v2" // v2beta1 was removed
	aggregatedKind    = "APIGroupDiscoveryList"
)

// root serves /api or /apis: the plain list, or the aggregated document to clients that accept it. It answers every
// method; readOnly does not.
type root struct {
	plain     runtime.Object
	plainKind schema.GroupVersionKind
	// all has the aggregated document and its ETag by media type.
	all map[string]encoded
}

type encoded struct {
	bytes []byte
	etag  string
}

// newRoot makes the document of path.
func newRoot(path string, parts []gvResources, address string) (*root, error) {
	r := &root{plainKind: schema.GroupVersionKind{Version: "v1", Kind: "APIGroupList"}, all: map[string]encoded{}}
	if path == "/api" {
		versions := &metav1.APIVersions{ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{}}
		if address != "" {
			versions.ServerAddressByClientCIDRs = append(versions.ServerAddressByClientCIDRs,
				metav1.ServerAddressByClientCIDR{ClientCIDR: "0.0.0.0/0", ServerAddress: address})
		}
		for _, p := range parts {
			versions.Versions = append(versions.Versions, p.gv.Version)
		}
		r.plain = versions
		r.plainKind = schema.GroupVersionKind{Kind: "APIVersions"} // APIVersions has no group version
	} else {
		r.plain = &metav1.APIGroupList{Groups: groups(parts)}
	}
	list := aggregate(parts)
	list.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   aggregatedGroup,
		Version: aggregatedVersion,
		Kind:    aggregatedKind,
	})
	b, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", path, err)
	}
	b = append(b, '\n')
	r.all[wire.TypeJSON] = encoded{b, etag(b)}
	p, err := wire.NewEncoder(wire.Proto, list.GroupVersionKind()).Encode(list)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", path, err)
	}
	r.all[wire.TypeProto] = encoded{p, etag(p)}
	return r, nil
}

func (d *root) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want, err := wire.Negotiate(r, func(w wire.MediaTypeOptions) bool {
		return w.Group == aggregatedGroup && w.As == aggregatedKind && w.Version == aggregatedVersion &&
			w.Media != wire.YAML
	})
	if err != nil {
		wire.WriteError(w, r, err)
		return
	}
	if want.As == "" {
		wire.Write(w, r, http.StatusOK, d.plain, d.plainKind, want)
		return
	}
	doc := d.all[want.Media.String()]
	w.Header().Add("Vary", "Accept")
	w.Header().Set("ETag", doc.etag)
	w.Header().Set("Cache-Control", "public")
	contentType := fmt.Sprintf("%s;g=%s;v=%s;as=%s", want.Media, aggregatedGroup, aggregatedVersion, aggregatedKind)
	if strings.Contains(r.Header.Get("If-None-Match"), doc.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	wire.WriteParts(w, r, http.StatusOK, contentType, len(doc.bytes), func(yield func([]byte) bool) {
		yield(doc.bytes)
	})
}

// aggregate builds the aggregated discovery document.
func aggregate(parts []gvResources) *apidiscoveryv2.APIGroupDiscoveryList {
	list := &apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{}}
	for _, p := range parts {
		discovery := apidiscoveryv2.APIVersionDiscovery{
			Version:   p.gv.Version,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		}
		switch {
		case p.remote != nil && p.remote.Resources != nil:
			discovery = *p.remote.Resources
		case p.remote != nil:
			discovery.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
		for _, r := range p.resources {
			discovery.Resources = append(discovery.Resources, aggregateResource(r))
		}
		if n := len(list.Items); n > 0 && list.Items[n-1].Name == p.gv.Group {
			list.Items[n-1].Versions = append(list.Items[n-1].Versions, discovery)
			continue
		}
		g := apidiscoveryv2.APIGroupDiscovery{Versions: []apidiscoveryv2.APIVersionDiscovery{discovery}}
		g.Name = p.gv.Group
		list.Items = append(list.Items, g)
	}
	return list
}

func aggregateResource(res *resources.Resource) apidiscoveryv2.APIResourceDiscovery {
	discovery := apidiscoveryv2.APIResourceDiscovery{
		Resource:         res.Resource,
		ResponseKind:     kindOf(res.GVK(), res.GVR().GroupVersion()),
		Scope:            apidiscoveryv2.ScopeCluster,
		SingularResource: res.Singular,
		Verbs:            res.Verbs(),
		ShortNames:       res.ShortNames,
		Categories:       res.Categories,
	}
	if res.Namespaced {
		discovery.Scope = apidiscoveryv2.ScopeNamespace
	}
	for _, s := range res.AllSubresources() {
		discovery.Subresources = append(discovery.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource:  s.Name,
			ResponseKind: kindOf(s.GVK, res.GVR().GroupVersion()),
			Verbs:        s.Verbs,
		})
	}
	return discovery
}

// kindOf is gvk in aggregated discovery: group and version are empty if equal to those of the parent.
func kindOf(gvk schema.GroupVersionKind, under schema.GroupVersion) *metav1.GroupVersionKind {
	if gvk.GroupVersion() == under {
		gvk.Group = ""
		gvk.Version = ""
	}
	return &metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
}

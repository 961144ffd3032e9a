// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"cmp"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// page is a read-only path without an API kind.
type page struct {
	path, id, tag, doc string
	response           reflect.Type // nil: text
	media              []string
}

var discoveryMedia = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}

// key is the name of p's own document in v3.
func (p page) key() string { return strings.Trim(p.path, "/") }

// lists are the discovery pages of built-in group versions.
func lists(resources []Resource) []page {
	var out []page
	seen := map[string]bool{}
	for _, r := range resources {
		gv := r.GVR.GroupVersion()
		p := page{
			path:     prefix(gv) + "/",
			id:       "get" + groupID(gv.Group) + camelCase(gv.Version, true) + "APIResources",
			tag:      groupTag(gv),
			doc:      "get available resources",
			response: reflect.TypeFor[metav1.APIResourceList](),
			media:    discoveryMedia,
		}
		if r.Model == nil && !seen[p.path] {
			seen[p.path] = true
			out = append(out, p)
		}
	}
	return out
}

// roots are the discovery pages above, and the server's own pages. In v3 each is a document.
func roots(resources []Resource) []page {
	json := []string{"application/json"}
	out := []page{
		{
			"/api/", "getCoreAPIVersions", "core", "get available API versions", reflect.TypeFor[metav1.APIVersions](),
			discoveryMedia,
		},
		{
			"/apis/", "getAPIVersions", "apis", "get available API versions", reflect.TypeFor[metav1.APIGroupList](),
			discoveryMedia,
		},
		{
			"/version/", "getCodeVersion", "version", "get the version information for this server",
			reflect.TypeFor[version.Info](), json,
		},
		{
			"/.well-known/openid-configuration/", "getServiceAccountIssuerOpenIDConfiguration", "WellKnown",
			"get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'", nil, json,
		},
		{
			"/openid/v1/jwks/", "getServiceAccountIssuerOpenIDKeyset", "openid",
			"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)", nil,
			[]string{"application/jwk-set+json"},
		},
	}
	seen := map[string]bool{"": true}
	for _, r := range resources {
		if g := r.GVR.Group; r.Model == nil && !seen[g] {
			seen[g] = true
			out = append(out, page{
				"/apis/" + g + "/", "get" + groupID(g) + "APIGroup",
				camelCase(strings.TrimSuffix(g, ".k8s.io"), false), "get information of a group",
				reflect.TypeFor[metav1.APIGroup](), discoveryMedia,
			})
		}
	}
	return out
}

// groupID is a group's name in operation IDs.
func groupID(group string) string {
	return camelCase(cmp.Or(strings.TrimSuffix(group, ".k8s.io"), "core"), true)
}

func (s *schemas) addPage(paths map[string]spec.PathItem, p page) {
	answer := plain("string", "")
	if p.response != nil {
		answer = s.ref(p.response)
	}
	op := &spec.Operation{OperationProps: spec.OperationProps{
		ID:          p.id,
		Description: p.doc,
		Produces:    p.media,
		Schemes:     []string{"https"},
		Tags:        []string{p.tag},
		Responses:   responses(answer, nil),
	}}
	if p.response != nil {
		op.Consumes = p.media
	}
	paths[p.path] = spec.PathItem{PathItemProps: spec.PathItemProps{Get: op}}
}

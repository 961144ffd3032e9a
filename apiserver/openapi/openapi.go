// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Swagger describes the resources as OpenAPI v2. version is the server's, "v1.37.2".
func Swagger(version string, resources []Resource) (*spec.Swagger, error) {
	return build(version, resources, roots(resources), true)
}

// build is Swagger with additional pages. With v2 false, schemas may use features of v3, for a document that is then
// converted.
func build(version string, resources []Resource, pages []page, v2 bool) (*spec.Swagger, error) {
	s := &schemas{defs: spec.Definitions{}, v2: v2}
	if len(resources) > 0 {
		s.groupVersion = resources[0].GVR.GroupVersion()
	}
	paths := map[string]spec.PathItem{}
	for _, res := range resources {
		if res.Model != nil {
			if _, ok := s.defs[res.Model.Name]; !ok { // a subresource has the same model
				s.custom(res, v2)
			}
		} else {
			if !res.Connect {
				s.ref(res.Type)
			}
			if res.List != nil {
				s.ref(res.List)
			}
		}
		s.addPaths(paths, res)
	}
	for _, p := range append(lists(resources), pages...) {
		s.addPage(paths, p)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	out := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: version}},
		Paths:       &spec.Paths{Paths: paths},
		Definitions: s.defs,
		SecurityDefinitions: spec.SecurityDefinitions{
			"BearerToken": &spec.SecurityScheme{SecuritySchemeProps: spec.SecuritySchemeProps{
				Type:        "apiKey",
				Name:        "authorization",
				In:          "header",
				Description: "Bearer Token authentication",
			}},
		},
		Security: []map[string][]string{{"BearerToken": {}}},
	}}
	if v2 {
		return out, shareParameters(out)
	}
	return out, nil
}

func byVersion(resources []Resource) map[schema.GroupVersion][]Resource {
	out := map[schema.GroupVersion][]Resource{}
	for _, r := range resources {
		gv := r.GVR.GroupVersion()
		out[gv] = append(out[gv], r)
	}
	return out
}

func path(gv schema.GroupVersion) string { return strings.TrimPrefix(prefix(gv), "/") }

// Sorted orders resources by group, version, resource and subresource, so that documents are reproducible.
func Sorted(list []Resource) []Resource {
	slices.SortFunc(list, func(a, b Resource) int {
		return strings.Compare(a.GVR.String()+"/"+a.Subresource, b.GVR.String()+"/"+b.Subresource)
	})
	return list
}

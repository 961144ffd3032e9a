// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	apiversion "k8s.io/apimachinery/pkg/version"

	"keelson/api/apply"
	"keelson/api/kind"
	"keelson/api/patch"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
)

// prefix is the objects' key prefix in the store, as in Kubernetes.
func (vs *versions) prefix() string { return vs.group + "/" + vs.names.Plural }

// config is the storage configuration of the definition's objects.
func (vs *versions) config() objects.Config {
	return objects.Config{
		Resource:   vs.storage.kind().GVR().GroupResource(),
		GVK:        vs.storage.gvk,
		New:        func() kind.Object { return vs.storage.empty() },
		Prefix:     vs.prefix(),
		Namespaced: vs.storage.scoped,
		Codec:      codec{vs},
		Fields:     vs.fields,
	}
}

// fields are the selectable fields of all versions, read from the stored object: with strategy None a path is the same
// in each version. With a conversion webhook, other versions select from converted objects (served.splitSelectors).
func (vs *versions) fields(obj kind.Object) fields.Set {
	set := vs.storage.fields(obj)
	if vs.usesWebhook() {
		return set
	}
	for _, v := range vs.byName {
		for _, f := range v.selectable {
			if _, ok := set[f.name]; !ok {
				set[f.name] = f.selectorValue(content(obj))
			}
		}
	}
	return set
}

func (vs *versions) usesWebhook() bool {
	_, plain := vs.converter.(noneConverter)
	return !plain
}

// resource builds the resources.Resource of v.
func (s *servedDefinition) resource(v *version) *resources.Resource {
	k := v.kind()
	if check := s.checks[k.GVR()]; check != nil {
		k.Rules = v.rulesAndCheck(check)
	}
	var storage objects.Storage = s.base
	if stored := s.crd.Status.StoredVersions; v != s.versions.storage || len(stored) != 1 || stored[0] != v.spec.Name {
		storage = &served{base: s.base, versions: s.versions, version: v}
	}
	managers := map[string]*apply.Manager{}
	for _, sub := range []string{"", "status"} {
		managers[sub] = apply.NewCustom(k, sub, s.versions.fieldManagerInput(v, sub))
	}
	return resources.NewCustom(s.row(v, k), storage, managers, resources.Custom{
		ListKind: v.names.ListKind,
		Stored:   s.versions.storage.spec.Name,
		Schema:   v.openAPI,
		// the generation changes with the specification
		Sum: fmt.Sprintf("%s %d %s %s %s", s.crd.UID, s.crd.Generation, v.gvk, v.names.Plural, v.names.ListKind),
		Convert: func(ctx context.Context, obj kind.Object) (kind.Object, error) {
			u, ok := obj.(*unstructured.Unstructured)
			if !ok {
				return nil, fmt.Errorf("convert a %T: no custom resource", obj)
			}
			return s.versions.convertOne(ctx, u, v)
		},
	})
}

// row is the row of v. It follows Kubernetes' apiextensions server, which differs from the server of built-in
// kinds.
func (s *servedDefinition) row(v *version, k *kind.Kind) resources.Row {
	row := resources.Row{
		Kind:               k,
		Prefix:             s.versions.prefix(),
		ResponseWarnings:   v.deprecationWarnings(s.crd),
		ScalePaths:         map[string][]string{},
		NameOnCreate:       true,
		AllowsAnyFinalizer: []string{"*"},
		KeepsEmptyFields:   true,
		ErrorsAsFound:      true,
		RoutedByPath:       true,
		PatchTypes:         patch.Untyped,
		CustomFieldLabels:  true,
	}
	if terminating(s.crd) {
		row.CreateDenied = "create not allowed while custom resource definition is terminating"
	}
	for _, other := range s.versions.byName {
		if other.scale != nil {
			row.ScalePaths[other.gvk.GroupVersion().String()] = splitPath(other.scale.SpecReplicasPath)
		}
	}
	return row
}

// deprecationWarnings are the deprecation warnings of a version.
func (v *version) deprecationWarnings(crd *v1.CustomResourceDefinition) []string {
	if !v.spec.Deprecated {
		return nil
	}
	if v.spec.DeprecationWarning != nil {
		return []string{*v.spec.DeprecationWarning}
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", crd.Spec.Group, v.spec.Name, crd.Spec.Names.Kind)
	best := ""
	for i := range crd.Spec.Versions {
		o := &crd.Spec.Versions[i]
		if o.Served && !o.Deprecated && apiversion.CompareKubeAwareVersionStrings(v.spec.Name, o.Name) < 0 &&
			(best == "" || apiversion.CompareKubeAwareVersionStrings(o.Name, best) > 0) {
			best = o.Name
		}
	}
	if best != "" {
		text += fmt.Sprintf("; use %s/%s %s", crd.Spec.Group, best, crd.Spec.Names.Kind)
	}
	return []string{text}
}

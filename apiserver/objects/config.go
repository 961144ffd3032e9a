// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
)

// Root is the key prefix of all objects.
const Root = "/registry/"

// Config describes one resource's storage.
type Config struct {
	// Resource is used in error messages: {"apps", "deployments"}.
	Resource schema.GroupResource
	// GVK is the storage version.
	GVK schema.GroupVersionKind
	New func() kind.Object
	// Prefix is the key part after Root: "pods", "services/specs", "minions" (StorePrefix returns Kubernetes' choice).
	Prefix     string
	Namespaced bool
	// Codec encodes objects; nil: Protobuf(GVK, New, StoredVersions).
	Codec Codec
	// StoredVersions decodes the JSON form of stored versions whose format differs from GVK's, by version.
	StoredVersions map[string]func(doc []byte) (kind.Object, error)
	// Default sets fields that an older writer did not know; may be nil.
	Default func(kind.Object)
	// Fields are the selectable fields; nil: metadata.name and metadata.namespace.
	Fields func(kind.Object) fields.Set
	// Packed: a cache keeps the objects compressed and decodes one when it is read, for resources whose objects are
	// large and rarely read.
	Packed bool
	// Index has the fields by which lists and watches are often selected, such as spec.nodeName.
	Index map[string]func(kind.Object) string
}

// withDefaults sets the defaults.
func (c Config) withDefaults() Config {
	if c.Codec == nil {
		c.Codec = Protobuf(c.GVK, c.New, c.StoredVersions)
	}
	if c.Fields == nil {
		c.Fields = func(obj kind.Object) fields.Set {
			set := fields.Set{"metadata.name": obj.GetName()}
			if c.Namespaced {
				set["metadata.namespace"] = obj.GetNamespace()
			}
			return set
		}
	}
	return c
}

// KeyPrefix is the key prefix of the resource, or of its objects in one namespace.
func (c Config) KeyPrefix(namespace string) string {
	if namespace == "" || !c.Namespaced {
		return Root + c.Prefix + "/"
	}
	return Root + c.Prefix + "/" + namespace + "/"
}

// ScopeOf is the namespace of a query; "" for all, and always for cluster-scoped resources.
func (c Config) ScopeOf(namespace string) string {
	if !c.Namespaced {
		return ""
	}
	return namespace
}

// Key is an object's key.
func (c Config) Key(namespace, name string) (string, error) {
	if c.Namespaced && namespace == "" {
		return "", apierrors.NewBadRequest("namespace is required")
	}
	if name == "" {
		return "", apierrors.NewBadRequest("name is required")
	}
	if name == "." || name == ".." {
		return "", apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: may not be '%s'", name, name))
	}
	for _, r := range namespace + name {
		if r == '/' || r == 0 {
			return "", apierrors.NewBadRequest("name and namespace may not contain '/'")
		}
	}
	return c.KeyPrefix(namespace) + name, nil
}

// StorePrefix is the Config.Prefix of a built-in resource in Kubernetes.
func StorePrefix(r schema.GroupResource) string {
	if p, ok := prefixExceptions[r]; ok {
		return p
	}
	return r.Resource
}

// The key prefix of a built-in resource is its plain name, without the group. These are the exceptions.
var prefixExceptions = map[schema.GroupResource]string{
	{Resource: "nodes"}:                                        "minions",
	{Resource: "replicationcontrollers"}:                       "controllers",
	{Resource: "services"}:                                     "services/specs",
	{Resource: "endpoints"}:                                    "services/endpoints",
	{Group: "networking.k8s.io", Resource: "ingresses"}:        "ingress",
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}: "apiregistration.k8s.io/apiservices",
	{
		Group:    "apiextensions.k8s.io",
		Resource: "customresourcedefinitions",
	}: "apiextensions.k8s.io/customresourcedefinitions",
	{Group: "events.k8s.io", Resource: "events"}: "events",
}

// FormatRevision formats a revision as a resourceVersion.
func FormatRevision(rev int64) string { return strconv.FormatInt(rev, 10) }

// ParseRevision parses a resourceVersion; "" is 0.
func ParseRevision(rv string) (int64, error) {
	if rv == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(rv, 10, 63)
	if err != nil {
		return 0, invalidVersion(rv, err)
	}
	return int64(n), nil
}

// Selects reports whether the selectors match obj.
func (c Config) Selects(q *ListQuery, obj kind.Object) bool {
	if !q.Labels.Empty() && !q.Labels.Matches(labels.Set(obj.GetLabels())) {
		return false
	}
	return q.Fields.Empty() || q.Fields.Matches(c.Fields(obj))
}

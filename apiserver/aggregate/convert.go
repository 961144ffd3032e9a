// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// versionOf converts a plain resource list to the form of aggregated discovery.
func versionOf(gv schema.GroupVersion, list *metav1.APIResourceList) *apidiscoveryv2.APIVersionDiscovery {
	out := &apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	at := map[string]int{}
	for i := range list.APIResources {
		apiResource := &list.APIResources[i]
		kind := &metav1.GroupVersionKind{
			Group:   firstNonEmpty(apiResource.Group, gv.Group),
			Version: firstNonEmpty(apiResource.Version, gv.Version),
			Kind:    apiResource.Kind,
		}
		name, sub, isSub := strings.Cut(apiResource.Name, "/")
		if isSub {
			if n, ok := at[name]; ok {
				out.Resources[n].Subresources = append(
					out.Resources[n].Subresources, apidiscoveryv2.APISubresourceDiscovery{
						Subresource:  sub,
						ResponseKind: kind,
						Verbs:        apiResource.Verbs,
					})
			}
			continue
		}
		scope := apidiscoveryv2.ScopeCluster
		if apiResource.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		at[name] = len(out.Resources)
		out.Resources = append(out.Resources, apidiscoveryv2.APIResourceDiscovery{
			Resource:         name,
			ResponseKind:     kind,
			Scope:            scope,
			SingularResource: apiResource.SingularName,
			Verbs:            apiResource.Verbs,
			ShortNames:       apiResource.ShortNames,
			Categories:       apiResource.Categories,
		})
	}
	return out
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

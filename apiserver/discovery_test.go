// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"keelson/apiserver/servertest"
)

const aggregatedV2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// TestDiscovery holds the aggregated documents against the plain ones.
func TestDiscovery(t *testing.T) {
	running := servertest.Start(t, nil)
	c := discovery.NewDiscoveryClientForConfigOrDie(running.Rest)
	groups, resources, failed, err := c.GroupsAndMaybeResources()
	if err != nil || len(failed) > 0 || len(resources) == 0 {
		t.Fatalf("aggregated discovery: %v %v, %d resource lists", err, failed, len(resources))
	}
	var plainCore metav1.APIVersions
	running.Call(t, "GET", "/api", "").Into(t, &plainCore)
	var plain metav1.APIGroupList
	running.Call(t, "GET", "/apis", "").Into(t, &plain)
	if plain.Kind != "APIGroupList" || plainCore.Kind != "APIVersions" ||
		!slices.Equal(plainCore.Versions, []string{"v1"}) {
		t.Errorf("plain documents: %s and %s of %v", plain.Kind, plainCore.Kind, plainCore.Versions)
	}
	if got, want := len(groups.Groups), len(plain.Groups)+1; got != want || groups.Groups[0].Name != "" {
		t.Errorf("aggregated: %d groups, the first %q; want %d with core first", got, groups.Groups[0].Name, want)
	}
	for i, apiGroup := range plain.Groups {
		if a := groups.Groups[i+1]; a.Name != apiGroup.Name || a.PreferredVersion != apiGroup.PreferredVersion ||
			len(a.Versions) != len(apiGroup.Versions) {
			t.Errorf("group %d: aggregated %v, plain %v", i, a, apiGroup)
		}
		if apiGroup.PreferredVersion != apiGroup.Versions[0] {
			t.Errorf("group %s prefers %s, its first version is %s", apiGroup.Name, apiGroup.PreferredVersion.Version,
				apiGroup.Versions[0].Version)
		}
		var one metav1.APIGroup
		running.Call(t, "GET", "/apis/"+apiGroup.Name, "").Into(t, &one)
		if one.Kind != "APIGroup" || one.APIVersion != "v1" || one.Name != apiGroup.Name {
			t.Errorf("/apis/%s is %s %s of %s", apiGroup.Name, one.APIVersion, one.Kind, one.Name)
		}
	}
	for gv, list := range resources {
		sameResources(t, running, gv.String(), list)
	}
}

func sameResources(t *testing.T, r *servertest.Running, gv string, aggregated *metav1.APIResourceList) {
	t.Helper()
	path := "/apis/" + gv
	if gv == "v1" {
		path = "/api/v1"
	}
	var plain metav1.APIResourceList
	r.Call(t, "GET", path, "").Into(t, &plain)
	if plain.GroupVersion != gv {
		t.Errorf("%s is about %q", path, plain.GroupVersion)
	}
	byName := map[string]metav1.APIResource{}
	for _, res := range plain.APIResources {
		byName[res.Name] = res
		if len(res.Verbs) == 0 || !slices.IsSorted(res.Verbs) || res.Kind == "" {
			t.Errorf("%s %s: verbs %v, kind %q", path, res.Name, res.Verbs, res.Kind)
		}
		// component statuses are not
		if stored := slices.Contains(res.Verbs, "watch"); stored != (res.StorageVersionHash != "") {
			t.Errorf("%s %s: stored %v, storageVersionHash %q", path, res.Name, stored, res.StorageVersionHash)
		}
	}
	if len(byName) != len(aggregated.APIResources) {
		t.Errorf("%s: %d resources, aggregated %d", gv, len(byName), len(aggregated.APIResources))
	}
	for _, a := range aggregated.APIResources {
		p, ok := byName[a.Name]
		if !ok || a.Kind != p.Kind || a.Namespaced != p.Namespaced || !slices.Equal(a.Verbs, p.Verbs) ||
			!strings.Contains(a.Name, "/") && a.SingularName != p.SingularName ||
			!slices.Equal(a.ShortNames, p.ShortNames) || !slices.Equal(a.Categories, p.Categories) {
			t.Errorf("%s %s: aggregated %+v, plain %+v", gv, a.Name, a, p)
		}
	}
}

// TestAggregatedDiscovery is about the documents themselves.
func TestAggregatedDiscovery(t *testing.T) {
	running := servertest.Start(t, nil)
	for _, path := range []string{"/api", "/apis"} {
		got := running.Call(t, "GET", path, "", "Accept", aggregatedV2+",application/json")
		var list apidiscoveryv2.APIGroupDiscoveryList
		got.Into(t, &list)
		if list.Kind != "APIGroupDiscoveryList" || list.APIVersion != "apidiscovery.k8s.io/v2" || len(list.Items) == 0 {
			t.Fatalf("%s: %s %s with %d groups", path, list.APIVersion, list.Kind, len(list.Items))
		}
		for _, g := range list.Items {
			for _, v := range g.Versions {
				if v.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent || len(v.Resources) == 0 {
					t.Errorf("%s %s/%s: freshness %q, %d resources", path, g.Name, v.Version, v.Freshness,
						len(v.Resources))
				}
			}
		}
		if ct := got.Header.Get("Content-Type"); ct != aggregatedV2 {
			t.Errorf("%s: content type %q", path, ct)
		}
		tag := got.Header.Get("ETag")
		if len(tag) != 130 || strings.ToUpper(tag) != tag || got.Header.Get("Vary") != "Accept" {
			t.Errorf("%s: ETag %s, Vary %q", path, tag, got.Header.Get("Vary"))
		}
		again := running.Call(t, "GET", path, "", "Accept", aggregatedV2, "If-None-Match", tag)
		if again.Code != 304 || len(again.Body) != 0 {
			t.Errorf("%s with its tag: %d, %d bytes", path, again.Code, len(again.Body))
		}
		running.Call(t, "GET", path, "", "Accept",
			"application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList").
			Wants(t, path+" in a version that does not exist", 406, "only the following media types are accepted")
	}
	wantsPlain404(t, running.Call(t, "GET", "/apis/nobody.example.com", ""))
	wantsPlain404(t, running.Call(t, "GET", "/healthz/nothing", ""))
	for _, path := range []string{"/apis/apps/v9", "/apis/apps/v9/things", "/api/v9", "/api/v1/things", "/version/x"} {
		running.Call(t, "GET", path, "").Wants(t, path, 404, "the server could not find the requested resource")
	}
	running.Call(t, "POST", "/api/v1/nodes/x/status", "{}").Wants(t, "verb of a subresource", 405,
		"the server does not allow this method on the requested resource")
}

// wantsPlain404 expects the answer of a path that does not exist.
func wantsPlain404(t testing.TB, r servertest.Reply) {
	t.Helper()
	if r.Code != 404 || string(r.Body) != "404 page not found\n" ||
		r.Header.Get("Cache-Control") != "no-cache, private" {
		t.Errorf("got %d, want 404 in plain text that is not kept: %s", r.Code, servertest.Short(r.Body))
	}
}

// TestMethodsOfDocuments: the groups, health and schemas answer every method, as in Kubernetes; versions
// and their resources answer GET.
func TestMethodsOfDocuments(t *testing.T) {
	running := servertest.Start(t, nil)
	for path, want := range map[string]int{
		"/apis":         200,
		"/apis/":        200,
		"/apis/apps":    200,
		"/healthz":      200,
		"/readyz":       200,
		"/openapi/v2":   200,
		"/openapi/v3":   200,
		"/":             200,
		"/api":          405,
		"/api/v1":       405,
		"/apis/apps/v1": 405,
		"/version":      405,
	} {
		for _, method := range []string{"HEAD", "POST", "PUT", "DELETE"} {
			got := running.Call(t, method, path, "")
			if got.Code != want {
				t.Errorf("%s %s: %d, want %d: %s", method, path, got.Code, want, servertest.Short(got.Body))
			}
			if (method == "HEAD") != (len(got.Body) == 0) {
				t.Errorf("%s %s: a body of %d bytes", method, path, len(got.Body))
			}
		}
	}
	posted := running.Call(t, "POST", "/apis", "")
	if get := running.Call(t, "GET", "/apis", ""); string(get.Body) != string(posted.Body) {
		t.Errorf("POST of /apis: got %s, want what GET answers", servertest.Short(posted.Body))
	}
}

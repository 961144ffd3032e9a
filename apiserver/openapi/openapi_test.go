// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/api/scheme"
)

func resources() []Resource {
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	return Sorted([]Resource{
		{
			GVR:        corev1.SchemeGroupVersion.WithResource("pods"),
			Namespaced: true,
			Parent:     "Pod",
			Kind:       corev1.SchemeGroupVersion.WithKind("Pod"),
			Type:       reflect.TypeFor[corev1.Pod](),
			List:       reflect.TypeFor[corev1.PodList](),
			Verbs:      all,
		},
		{
			GVR:         corev1.SchemeGroupVersion.WithResource("pods"),
			Subresource: "status",
			Namespaced:  true,
			Parent:      "Pod",
			Kind:        corev1.SchemeGroupVersion.WithKind("Pod"),
			Type:        reflect.TypeFor[corev1.Pod](),
			Verbs:       []string{"get", "update", "patch"},
		},
		{
			GVR:    corev1.SchemeGroupVersion.WithResource("nodes"),
			Parent: "Node",
			Kind:   corev1.SchemeGroupVersion.WithKind("Node"),
			Type:   reflect.TypeFor[corev1.Node](),
			List:   reflect.TypeFor[corev1.NodeList](),
			Verbs:  all,
		},
		{
			GVR:        appsv1.SchemeGroupVersion.WithResource("deployments"),
			Namespaced: true,
			Parent:     "Deployment",
			Kind:       appsv1.SchemeGroupVersion.WithKind("Deployment"),
			Type:       reflect.TypeFor[appsv1.Deployment](),
			List:       reflect.TypeFor[appsv1.DeploymentList](),
			Verbs:      all,
		},
	})
}

// TestSchemeStaysAsItIs: documents are made at the same time, and the lists of kinds are the scheme's own.
func TestSchemeStaysAsItIs(t *testing.T) {
	known, _, err := scheme.Scheme.ObjectKinds(&metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := slices.Clone(known)
	s := &schemas{defs: spec.Definitions{}, v2: true}
	s.ref(reflect.TypeFor[metav1.DeleteOptions]())
	// it may have been sorted by an earlier test
	if !slices.Equal(before, known) || slices.IsSortedFunc(known, byName) {
		t.Errorf("the scheme's own list was sorted: %v", known)
	}
}

func TestSwagger(t *testing.T) {
	swagger, err := Swagger("v1.37.2", resources())
	if err != nil {
		t.Fatal(err)
	}
	container := swagger.Definitions["io.k8s.api.core.v1.PodSpec"].Properties["containers"]
	for key, want := range map[string]any{
		"x-kubernetes-patch-strategy":  "merge",
		"x-kubernetes-patch-merge-key": "name",
		"x-kubernetes-list-type":       "map",
		"x-kubernetes-list-map-keys":   []any{"name"},
	} {
		if got := container.Extensions[key]; !reflect.DeepEqual(got, want) {
			t.Errorf("PodSpec.containers %s: got %v, want %v", key, got, want)
		}
	}
	if !strings.HasPrefix(container.Description, "List of containers belonging to the pod.") {
		t.Errorf("PodSpec.containers description: got %q", container.Description)
	}
	if got := swagger.Definitions["io.k8s.api.core.v1.PodSpec"].Required; !reflect.DeepEqual(got,
		[]string{"containers"}) {
		t.Errorf("PodSpec required: got %q, want containers", got)
	}
	for name, want := range map[string][2]string{
		"io.k8s.apimachinery.pkg.api.resource.Quantity":   {"string", ""},
		"io.k8s.apimachinery.pkg.apis.meta.v1.Time":       {"string", "date-time"},
		"io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"string", "int-or-string"},
	} {
		d, ok := swagger.Definitions[name]
		if !ok || d.Type[0] != want[0] || d.Format != want[1] {
			t.Errorf("%s: got %v %q (defined %v), want %v", name, d.Type, d.Format, ok, want)
		}
	}
	ids := map[string]string{}
	for path, item := range swagger.Paths.Paths {
		for method, op := range map[string]any{
			"get":    item.Get,
			"post":   item.Post,
			"put":    item.Put,
			"patch":  item.Patch,
			"delete": item.Delete,
		} {
			b, _ := json.Marshal(op)
			var o struct{ OperationID string }
			_ = json.Unmarshal(b, &o)
			if o.OperationID == "" {
				continue
			}
			if at, twice := ids[o.OperationID]; twice {
				t.Errorf("operation id %s of %s %s is also of %s", o.OperationID, method, path, at)
			}
			ids[o.OperationID] = path
		}
	}
	patch := swagger.Paths.Paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"].Patch
	if patch == nil {
		t.Fatal("no PATCH of deployments")
	}
	found := false
	for _, p := range patch.Parameters {
		found = found || p.Name == "fieldValidation"
	}
	if !found {
		t.Error("PATCH of deployments has no fieldValidation parameter: kubectl would not validate")
	}
}

// TestOperations has some facts of operations as Kubernetes v1.37 publishes them.
func TestOperations(t *testing.T) {
	list := append(resources(), Resource{
		GVR:         corev1.SchemeGroupVersion.WithResource("pods"),
		Subresource: "exec",
		Parent:      "Pod",
		Namespaced:  true,
		Connect:     true,
		Kind:        corev1.SchemeGroupVersion.WithKind("PodExecOptions"),
		Type:        reflect.TypeFor[corev1.PodExecOptions](),
		Verbs:       []string{"create", "get"},
	})
	s, err := build("v1.37.2", list, roots(list), false)
	if err != nil {
		t.Fatal(err)
	}
	doc := openapiconv.ConvertV2ToV3(s)
	requireBodies(doc)
	const pods, pod = "/api/v1/namespaces/{namespace}/pods", "/api/v1/namespaces/{namespace}/pods/{name}"
	at := doc.Paths.Paths
	for _, row := range []struct {
		op                                           *spec3.Operation
		id, doc, action, answer, codes, body, params string
	}{
		{
			at[pods].Post, "createCoreV1NamespacedPod", "create a Pod", "post", "Pod", "200 201 202 401", "required",
			"dryRun fieldManager fieldValidation",
		},
		{
			at[pods].Delete, "deleteCoreV1CollectionNamespacedPod", "delete collection of Pod", "deletecollection",
			"Status", "200 401", "may be",
			"continue dryRun fieldSelector gracePeriodSeconds ignoreStoreReadErrorWithClusterBreakingPotential " +
				"labelSelector limit orphanDependents " +
				"propagationPolicy resourceVersion resourceVersionMatch sendInitialEvents shardSelector timeoutSeconds",
		},
		{at[pod].Get, "readCoreV1NamespacedPod", "read the specified Pod", "get", "Pod", "200 401", "", ""},
		{
			at[pod].Patch, "patchCoreV1NamespacedPod", "partially update the specified Pod", "patch", "Pod",
			"200 201 401", "required",
			"dryRun fieldManager fieldValidation force",
		},
		{
			at[pod].Delete, "deleteCoreV1NamespacedPod", "delete a Pod", "delete", "Pod", "200 202 401", "may be",
			"dryRun gracePeriodSeconds ignoreStoreReadErrorWithClusterBreakingPotential orphanDependents " +
				"propagationPolicy",
		},
		{
			at[pod+"/status"].Put, "replaceCoreV1NamespacedPodStatus", "replace status of the specified Pod", "put",
			"Pod", "200 201 401", "required",
			"dryRun fieldManager fieldValidation",
		},
		{
			at[pod+"/exec"].Post, "connectCoreV1PostNamespacedPodExec", "connect POST requests to exec of Pod",
			"connect", "", "200 401", "", "",
		},
		{
			at["/api/v1/pods"].Get, "listCoreV1PodForAllNamespaces", "list or watch objects of kind Pod", "list",
			"PodList", "200 401", "", "",
		},
		{
			at["/api/v1/watch/pods"].Get, "watchCoreV1PodListForAllNamespaces",
			"watch individual changes to a list of Pod. deprecated: use the " +
				"'watch' parameter with a list operation instead.", "watchlist", "WatchEvent", "200 401", "", "",
		},
		{
			at["/apis/apps/v1/"].Get, "getAppsV1APIResources", "get available resources", "", "APIResourceList",
			"200 401", "", "",
		},
		{at["/apis/apps/"].Get, "getAppsAPIGroup", "get information of a group", "", "APIGroup", "200 401", "", ""},
		{
			at["/version/"].Get, "getCodeVersion", "get the version information for this server", "", "Info",
			"200 401", "", "",
		},
	} {
		var codes []string
		for code := range row.op.Responses.StatusCodeResponses {
			codes = append(codes, strconv.Itoa(code))
		}
		slices.Sort(codes)
		body := ""
		if row.op.RequestBody != nil {
			body = map[bool]string{true: "required", false: "may be"}[row.op.RequestBody.Required]
		}
		answer := ""
		for _, c := range row.op.Responses.StatusCodeResponses[200].Content {
			answer = c.Schema.Ref.String()[strings.LastIndexByte(c.Schema.Ref.String(), '.')+1:]
		}
		action, _ := row.op.Extensions.GetString("x-kubernetes-action")
		got := []string{row.op.OperationId, row.op.Description, action, answer, strings.Join(codes,
			" "), body, parameterNames(row.op.Parameters)}
		if want := []string{row.id, row.doc, row.action, row.answer, row.codes, row.body, row.params}; !slices.Equal(
			got, want) {
			t.Errorf("got\n%q, want\n%q", got, want)
		}
	}
	if got, want := parameterNames(at[pod+"/exec"].Parameters),
		"command container name namespace stderr stdin stdout tty"; got != want {
		t.Errorf("parameters of exec: %s, want %s", got, want)
	}
}

func parameterNames(params []*spec3.Parameter) string {
	var names []string
	for _, p := range params {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// TestDiscoveryClientReadsBoth reads the documents with the client that kubectl uses.
func TestDiscoveryClientReadsBoth(t *testing.T) {
	mux := http.NewServeMux()
	New("v1.37.2", "", resources()).Mount(mux)
	srv := httptest.NewServer(mux)
	defer srv.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := client.OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(doc.GetDefinitions().GetAdditionalProperties()); n < 100 {
		t.Errorf("v2 has %d definitions, want at least 100", n)
	}
	groups, err := client.OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, gv := range []string{"api/v1", "apis/apps/v1", "api", "apis/apps", "version"} {
		if groups[gv] == nil {
			t.Fatalf("v3 has no %s: %v", gv, groups)
		}
		for _, content := range []string{
			"application/json", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
		} {
			b, err := groups[gv].Schema(content)
			if err != nil || len(b) == 0 {
				t.Errorf("v3 %s as %s: %d bytes, %v", gv, content, len(b), err)
			}
		}
	}
}

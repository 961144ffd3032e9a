// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/servertest"
	"keelson/pki"
)

// converter is a conversion webhook that splits and joins host and port.
type converter struct {
	calls, objects atomic.Int64
	fail           atomic.Value // string
}

func (h *converter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.calls.Add(1)
	h.objects.Add(int64(len(review.Request.Objects)))
	resp := &apiextensionsv1.ConversionResponse{
		UID:    review.Request.UID,
		Result: metav1.Status{Status: metav1.StatusSuccess},
	}
	if msg, _ := h.fail.Load().(string); msg != "" {
		resp.Result = metav1.Status{Status: metav1.StatusFailure, Message: msg}
	}
	for _, raw := range review.Request.Objects {
		obj := &unstructured.Unstructured{}
		_ = obj.UnmarshalJSON(raw.Raw) // the server's own JSON
		if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v2") {
			host, _, _ := unstructured.NestedString(obj.Object, "host")
			port, _, _ := unstructured.NestedString(obj.Object, "port")
			obj.Object["hostPort"] = host + ":" + port
			delete(obj.Object, "host")
			delete(obj.Object, "port")
		} else if hp, ok, _ := unstructured.NestedString(obj.Object, "hostPort"); ok {
			obj.Object["host"], obj.Object["port"], _ = strings.Cut(hp, ":")
			delete(obj.Object, "hostPort")
		}
		obj.SetAPIVersion(review.Request.DesiredAPIVersion)
		resp.ConvertedObjects = append(resp.ConvertedObjects, runtime.RawExtension{Object: obj})
	}
	// the client sees
	_ = json.NewEncoder(w).Encode(&apiextensionsv1.ConversionReview{TypeMeta: review.TypeMeta, Response: resp})
}

// serveTLS serves handler under a certificate for names, and returns its address and the authority's certificate.
func serveTLS(t *testing.T, handler http.Handler, names ...string) (addr string, caPEM []byte) {
	t.Helper()
	ca, err := pki.Open(t.TempDir(), "hook-ca")
	if err != nil {
		t.Fatal(err)
	}
	own, err := ca.Server("hook", pki.Subject{Name: "hook", DNS: names, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := own.TLS()
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(handler)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), ca.CertPEM()
}

func TestConversionWebhook(t *testing.T) {
	for name, viaService := range map[string]bool{"url": false, "service": true} {
		t.Run(name, func(t *testing.T) {
			custom := servertest.StartCustom(t)
			h := &converter{}
			addr, ca := serveTLS(t, h, "hook.ns.svc")
			client := &apiextensionsv1.WebhookClientConfig{CABundle: ca}
			if viaService {
				hookService(t, custom)
				path := "/convert"
				_, port := servertest.SplitPort(t, addr)
				client.Service = &apiextensionsv1.ServiceReference{
					Namespace: "ns",
					Name:      "hook",
					Path:      &path,
					Port:      &port,
				}
			} else {
				url := "https://" + addr + "/convert"
				client.URL = &url
			}
			custom.Define(servertest.TwoVersions(&apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{
					ClientConfig:             client,
					ConversionReviewVersions: []string{"v1"},
				},
			}))
			tryConversion(t, custom, h)
			if n := custom.Gauge(t,
				`apiserver_crd_conversion_webhook_request_total{failure_type="",result="success"}`); n == "" ||
				n == "0" {
				t.Errorf("%q conversions were counted", n)
			}
		})
	}
}

// hookService makes the service "hook", which leads out of the cluster: endpoints may not be on the loopback interface.
func hookService(t *testing.T, c *servertest.Custom) {
	t.Helper()
	_, err := c.Clients(t).CoreV1().Services("ns").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func tryConversion(t *testing.T, c *servertest.Custom, h *converter) {
	t.Helper()
	ctx := t.Context()
	v1 := c.In("v1", "servers")
	v2 := c.In("v2", "servers")
	for _, u := range []*unstructured.Unstructured{
		servertest.Object("example.com/v1", "Server", "ns", "a", map[string]any{"host": "h", "port": "1"}),
		servertest.Object("example.com/v1", "Server", "ns", "b", map[string]any{"host": "h", "port": "2"}),
	} {
		if err := create(t, v1, u); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls for writes in the storage version", n)
	}
	w, err := v2.Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for range 2 {
		ev := <-w.ResultChan()
		if u, ok := ev.Object.(*unstructured.Unstructured); !ok || u.GetAPIVersion() != "example.com/v2" ||
			u.Object["hostPort"] == nil {
			t.Errorf("event %s %v, want v2", ev.Type, ev.Object)
		}
	}
	before := h.calls.Load()
	list, err := v2.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || list.Items[1].Object["hostPort"] != "h:2" || h.calls.Load() > before+1 {
		t.Errorf("list in v2: %v, %d calls", list.Items, h.calls.Load()-before)
	}
	made, err := v2.Create(ctx, servertest.Object("example.com/v2", "Server", "ns", "c", map[string]any{"hostPort": "x:9"}),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.GetAPIVersion() != "example.com/v2" || made.Object["hostPort"] != "x:9" {
		t.Errorf("created in v2: %v", made.Object)
	}
	patched, err := v2.Patch(ctx, "c", types.MergePatchType, []byte(`{"hostPort":"y:8"}`), metav1.PatchOptions{})
	if err != nil || patched.Object["hostPort"] != "y:8" {
		t.Fatalf("patch in v2: %v, %v", patched, err)
	}
	got, err := v1.Get(ctx, "c", metav1.GetOptions{})
	if err != nil || got.Object["host"] != "y" || got.Object["port"] != "8" || got.GetUID() != made.GetUID() {
		t.Errorf("in v1: %v, %v", got, err)
	}
	h.fail.Store("no such luck")
	if _, err := v2.Patch(ctx, "c", types.MergePatchType, []byte(`{"hostPort":"z:7"}`),
		metav1.PatchOptions{}); err == nil ||
		!strings.Contains(err.Error(), "conversion webhook for example.com/v") ||
		!strings.Contains(err.Error(), "failed: no such luck") {
		t.Errorf("failing webhook: %v", err)
	}
}

func TestNoneConversion(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.TwoVersions(nil))
	ctx := t.Context()
	if err := create(t, custom.In("v1", "servers"),
		servertest.Object("example.com/v1", "Server", "ns", "a", map[string]any{"host": "h", "port": "1"})); err != nil {
		t.Fatal(err)
	}
	got, err := custom.In("v2", "servers").Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(got.Object, "metadata")
	if d := cmp.Diff(map[string]any{"apiVersion": "example.com/v2", "kind": "Server", "port": "1"},
		got.Object); d != "" {
		t.Errorf("in v2, pruned by its schema (-want +got):\n%s", d)
	}
	// v2 becomes the storage version: objects stay as stored until written, and both versions go on.
	crd, err := custom.CRD("servers.example.com")
	if err != nil {
		t.Fatal(err)
	}
	crd.Spec.Versions[0].Storage = false
	crd.Spec.Versions[1].Storage = true
	crd.APIVersion = "apiextensions.k8s.io/v1"
	crd.Kind = "CustomResourceDefinition"
	if _, err := custom.Resource(servertest.DefinitionsGVR).Update(ctx, servertest.ToUnstructured(t, crd), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	crd, err = custom.CRD("servers.example.com")
	if err != nil || !cmp.Equal(crd.Status.StoredVersions, []string{"v1", "v2"}) {
		t.Errorf("stored versions: %v, %v", crd.Status.StoredVersions, err)
	}
	for _, v := range []string{"v1", "v2"} {
		got, err := custom.In(v, "servers").Patch(ctx, "a", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"in":"`+v+`"}}}`), metav1.PatchOptions{})
		if err != nil || got.GetAPIVersion() != "example.com/"+v || got.Object["port"] != "1" {
			t.Errorf("patch in %s: %v, %v", v, got, err)
		}
	}
	// Fields that a manager owns in one version are known in the other.
	_, err = custom.In("v1", "servers").Apply(ctx, "a", servertest.Object("example.com/v1", "Server", "ns", "a", map[string]any{
		"port": "2",
	}), metav1.ApplyOptions{FieldManager: "one", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = custom.In("v2", "servers").Apply(ctx, "a", servertest.Object("example.com/v2", "Server", "ns", "a", map[string]any{
		"port": "3",
	}), metav1.ApplyOptions{FieldManager: "two"})
	if err == nil || !strings.Contains(err.Error(), `conflict with "one": .port`) {
		t.Errorf("apply of what another owns in v1: %v", err)
	}
}

func TestDeprecatedVersionWarns(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("olds", "Old", `{type: object}`, func(crd *apiextensionsv1.CustomResourceDefinition) {
		old := crd.Spec.Versions[0]
		old.Name = "v1beta1"
		old.Storage = false
		old.Deprecated = true
		crd.Spec.Versions = append(crd.Spec.Versions, old)
	}))
	resp := custom.Raw(t, "GET", "/apis/example.com/v1beta1/olds", nil, nil)
	want := `299 - "example.com/v1beta1 Old is deprecated; use example.com/v1 Old"`
	if got := resp.Header.Values("Warning"); len(got) != 1 || got[0] != want {
		t.Errorf("warnings %q, want %s", got, want)
	}
	if got := custom.Raw(t, "GET", "/apis/example.com/v1/olds", nil, nil).Header.Values("Warning"); len(got) != 0 {
		t.Errorf("warnings of v1: %q", got)
	}
}

// TestUnreadOfVersions: in each version of a definition with several, an object that cannot be read is reported, and
// can be removed unread.
func TestUnreadOfVersions(t *testing.T) {
	st, ca := servertest.NewSite(t)
	running, stop := servertest.StartOn(t, st, ca, nil)
	t.Cleanup(stop)
	c := servertest.CustomOn(t, running)
	c.Define(servertest.TwoVersions(nil))
	if err := create(t, c.In("v1", "servers"), servertest.Object("example.com/v1", "Server", "ns", "good", nil)); err != nil {
		t.Fatal(err)
	}
	const unsafe = `{"kind":"DeleteOptions","apiVersion":"v1","ignoreStoreReadErrorWithClusterBreakingPotential":true}`
	for _, version := range []string{"v2", "v1"} {
		if _, err := st.Create(t.Context(), "/registry/example.com/servers/ns/bad", []byte("junk")); err != nil {
			t.Fatal(err)
		}
		base := "/apis/example.com/" + version + "/namespaces/ns/servers"
		for _, q := range []struct {
			method, path, body string
			code               int
			text               string
		}{
			{"GET", base + "/bad", "", 500, "StorageError: corrupt object, Code: 7"},
			{"DELETE", base + "/bad", "", 500, "Internal error occurred"},
			{
				"DELETE", base + "/good", unsafe, 409,
				"unsafe deletion is not allowed because the object is decodable from storage",
			},
			{"DELETE", base + "/bad", unsafe, 200, `"details":{"name":"bad"`},
			{"GET", base + "/bad", "", 404, "not found"},
		} {
			running.Call(t, q.method, q.path, q.body, "Content-Type", "application/json").Wants(t, q.method+" "+q.path,
				q.code, q.text)
		}
	}
}

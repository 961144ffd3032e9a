// SPDX-License-Identifier: Apache-2.0

package aggregate_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
	"keelson/pki"
)

var apiServiceGVR = apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")

// flunders is an aggregated API server that trusts the front proxy's certificate.
type flunders struct {
	t       *testing.T
	callers *x509.CertPool
}

func (f *flunders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		http.Error(w, "no client certificate", http.StatusUnauthorized)
		return
	}
	if _, err := r.TLS.PeerCertificates[0].Verify(
		x509.VerifyOptions{Roots: f.callers, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	const list = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1alpha1","resources":[` +
		`{"name":"flunders","singularName":"flunder","namespaced":true,"kind":"Flunder","verbs":["get","list"],"shortNames":["fl"]},` +
		`{"name":"flunders/status","singularName":"","namespaced":true,"kind":"Flunder","verbs":["get"]}]}`
	switch p := r.URL.Path; {
	case p == "/apis/wardle.example.com/v1alpha1":
		fmt.Fprint(w, list)
	case p == "/openapi/v3/apis/wardle.example.com/v1alpha1":
		fmt.Fprint(w,
			`{"openapi":"3.0.0","info":{"title":"w","version":"1"},"paths":{"/apis/wardle.example.com/v1alpha1/":{}},"components":{"schemas":{"com.example.wardle.Flunder":{"type":"object"}}}}`)
	case p == "/openapi/v2":
		fmt.Fprint(w,
			`{"swagger":"2.0","info":{"title":"w","version":"1"},"paths":{"/apis/wardle.example.com/v1alpha1/flunders":{}},"definitions":{"com.example.wardle.Flunder":{"type":"object"}}}`)
	case r.Header.Get("Upgrade") == "echo":
		f.echo(w)
	case strings.HasPrefix(p, "/apis/wardle.example.com/v1alpha1/namespaces/"):
		json.NewEncoder(w).Encode(map[string]any{ // the client sees
			"apiVersion":    "wardle.example.com/v1alpha1",
			"kind":          "Flunder",
			"metadata":      map[string]any{"name": "seen"},
			"user":          r.Header.Get("X-Remote-User"),
			"groups":        strings.Join(r.Header["X-Remote-Group"], ","),
			"host":          r.Host,
			"extra":         r.Header.Get("X-Remote-Extra-Forged"),
			"path":          p,
			"query":         r.URL.RawQuery,
			"authorization": r.Header.Get("Authorization"),
		})
	default:
		http.NotFound(w, r)
	}
}

func (f *flunders) echo(w http.ResponseWriter) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		f.t.Error(err)
		return
	}
	defer conn.Close()
	fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_ = rw.Flush() // the client sees
	line, err := rw.ReadString('\n')
	if err == nil {
		fmt.Fprint(conn, "echo "+line)
	}
}

// startAggregating starts a server with a front proxy certificate, and a flunders server behind the service ns/wardle.
func startAggregating(t *testing.T) (c *servertest.Custom, port int32, ca []byte, other *httptest.Server) {
	t.Helper()
	proxyCA, err := pki.Open(t.TempDir(), "front-proxy-ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := proxyCA.Client("front-proxy-client", pki.Subject{Name: "front-proxy-client"})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := pki.Open(t.TempDir(), "wardle-ca")
	if err != nil {
		t.Fatal(err)
	}
	own, err := serving.Server("wardle", pki.Subject{Name: "wardle", DNS: []string{"wardle.ns.svc"}})
	if err != nil {
		t.Fatal(err)
	}
	ownCert, err := own.TLS()
	if err != nil {
		t.Fatal(err)
	}
	other = httptest.NewUnstartedServer(&flunders{t, proxyCA.Pool()})
	other.EnableHTTP2 = true
	other.TLS = &tls.Config{
		Certificates: []tls.Certificate{ownCert},
		ClientAuth:   tls.RequestClientCert,
		MinVersion:   tls.VersionTLS12,
	}
	other.StartTLS()
	t.Cleanup(other.Close)
	r := servertest.Start(t, func(c *servertest.Setup) { c.FrontProxy = func() *tls.Certificate { return &cert } })
	d, err := dynamic.NewForConfig(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	c = &servertest.Custom{Running: r, T: t, Interface: d}
	cs := c.Clients(t)
	if _, err := cs.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, port = servertest.SplitPort(t, other.Listener.Addr().String())
	return c, port, serving.CertPEM(), other
}

func service(c *servertest.Custom, name string) {
	c.T.Helper()
	_, err := c.Clients(c.T).CoreV1().Services("ns").Create(c.T.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
}

func available(c *servertest.Custom, name string) string {
	c.T.Helper()
	u, err := c.Resource(apiServiceGVR).Get(c.T.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, cond := range conditions {
		if m, ok := cond.(map[string]any); ok && m["type"] == "Available" {
			return fmt.Sprint(m["status"], " ", m["reason"])
		}
	}
	return ""
}

func TestAggregation(t *testing.T) {
	custom, port, ca, other := startAggregating(t)
	svc := &apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{
		Group:                "wardle.example.com",
		Version:              "v1alpha1",
		GroupPriorityMinimum: 2000,
		VersionPriority:      200,
		CABundle:             ca,
		Service:              &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "wardle", Port: &port},
	}}
	svc.Name = "v1alpha1.wardle.example.com"
	svc.APIVersion = "apiregistration.k8s.io/v1"
	svc.Kind = "APIService"
	if _, err := custom.Resource(apiServiceGVR).Create(t.Context(), servertest.ToUnstructured(t, svc),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("the service to be missed", func() bool {
		return available(custom, svc.Name) == "False ServiceNotFound"
	})
	if resp := custom.Raw(t, "GET", "/apis/wardle.example.com/v1alpha1/namespaces/ns/flunders/x", nil,
		nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without a service: %d, want 503", resp.StatusCode)
	}
	service(custom, "wardle")
	custom.Wait("the api service to be available", func() bool { return available(custom, svc.Name) == "True Passed" })
	t.Run("proxied", func(t *testing.T) { checkProxied(t, custom) })
	t.Run("discovery", func(t *testing.T) { checkDiscovered(t, custom) })
	t.Run("upgrade", func(t *testing.T) { checkUpgraded(t, custom) })
	other.CloseClientConnections()
	other.Close()
	if resp := custom.Raw(t, "GET", "/apis/wardle.example.com/v1alpha1/namespaces/ns/flunders/x", nil,
		nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("when the server is gone: %d, want 503", resp.StatusCode)
	}
	if err := custom.Resource(apiServiceGVR).Delete(t.Context(), svc.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("the group to go", func() bool {
		return custom.Raw(t, "GET", "/apis/wardle.example.com/v1alpha1", nil, nil).StatusCode == http.StatusNotFound
	})
}

func checkProxied(t *testing.T, c *servertest.Custom) {
	t.Helper()
	resp := c.Raw(t, "GET", "/apis/wardle.example.com/v1alpha1/namespaces/ns/flunders/x?a=b",
		map[string]string{"X-Remote-User": "forged", "X-Remote-Extra-Forged": "yes"}, nil)
	var got map[string]any
	if err := json.Unmarshal([]byte(servertest.Text(t, resp)), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"user":          "admin",
		"groups":        "system:masters,system:authenticated",
		"extra":         "",
		"query":         "a=b",
		"host":          "wardle.ns.svc",
		"path":          "/apis/wardle.example.com/v1alpha1/namespaces/ns/flunders/x",
		"authorization": "",
	} {
		if got[key] != want {
			t.Errorf("%s: got %v, want %v", key, got[key], want)
		}
	}
}

func checkDiscovered(t *testing.T, c *servertest.Custom) {
	t.Helper()
	d := c.Clients(t).Discovery()
	groups, all, err := d.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, l := range all {
		if l.GroupVersion == "wardle.example.com/v1alpha1" {
			found = true
			if len(l.APIResources) != 2 || l.APIResources[0].Name != "flunders" ||
				l.APIResources[0].ShortNames[0] != "fl" {
				t.Errorf("resources: %+v", l.APIResources)
			}
		}
	}
	if !found {
		t.Errorf("no wardle.example.com among %d groups", len(groups))
	}
	for path, want := range map[string]string{
		"/apis":                             `"name":"wardle.example.com"`,
		"/apis/wardle.example.com":          `"groupVersion":"wardle.example.com/v1alpha1"`,
		"/apis/wardle.example.com/v1alpha1": `"name":"flunders"`,
		"/openapi/v2":                       `com.example.wardle.Flunder`,
		"/openapi/v3":                       `"apis/wardle.example.com/v1alpha1"`,
		"/openapi/v3/apis/wardle.example.com/v1alpha1": `com.example.wardle.Flunder`,
	} {
		if resp := c.Raw(t, "GET", path, nil, nil); resp.StatusCode != http.StatusOK ||
			!strings.Contains(servertest.Text(t, resp), want) {
			t.Errorf("%s (%d) has no %s", path, resp.StatusCode, want)
		}
	}
}

func checkUpgraded(t *testing.T, c *servertest.Custom) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.Rest.CAData)
	pair, err := tls.X509KeyPair(c.Rest.CertData, c.Rest.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(c.Rest.Host, "https://"), &tls.Config{
		RootCAs:      pool,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"http/1.1"},
		MinVersion:   tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /apis/wardle.example.com/v1alpha1/namespaces/ns/flunders/x/stream HTTP/1.1\r\nHost: "+
		"x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := in.ReadString('\n'); err != nil && err != io.EOF || line != "echo hello\n" {
		t.Errorf("answer %q, %v", line, err)
	}
}

// TestLocalAPIServices: every group version that the server answers for itself has an APIService, those of definitions
// as long as they are there.
func TestLocalAPIServices(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	has := func(name string) bool {
		_, err := custom.Resource(apiServiceGVR).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}
	for _, name := range []string{"v1.", "v1.apps", "v1.apiextensions.k8s.io", "v1.example.com"} {
		custom.Wait(name, func() bool { return has(name) })
		if got := available(custom, name); got != "True Local" {
			t.Errorf("%s is %s, want True Local", name, got)
		}
	}
	if err := custom.Resource(servertest.DefinitionsGVR).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("v1.example.com to go", func() bool { return !has("v1.example.com") })
	if !has("v1.apps") {
		t.Error("v1.apps has gone")
	}
	if _, err := custom.Resource(apiServiceGVR).Patch(t.Context(), "v1.apps", types.MergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"Available","status":"False","reason":"Broken"}]}}`),
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if err := custom.Resource(apiServiceGVR).Delete(t.Context(), "v1.batch", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("the APIServices to be restored", func() bool {
		return available(custom, "v1.apps") == "True Local" && has("v1.batch")
	})
}

// TestAPIServicesOfAnEarlierStart: a start restores the specs of built-in group versions and deletes those that this
// version does not serve; what an administrator has taken over stays, and another start writes nothing.
func TestAPIServicesOfAnEarlierStart(t *testing.T) {
	st, ca := servertest.NewSite(t)
	services := func(r *servertest.Running) dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(r.Rest).Resource(apiServiceGVR)
	}
	first, stop := servertest.StartOn(t, st, ca, nil)
	api := services(first)
	spec := func(group string, priority int64) map[string]any {
		return map[string]any{
			"group": group, "version": "v1", "groupPriorityMinimum": priority, "versionPriority": int64(15),
		}
	}
	stale := func(name, group string, labels map[string]any) {
		t.Helper()
		if _, err := api.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": name, "labels": labels},
			"spec":     spec(group, 2000),
		}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stale("v1.gone.k8s.io", "gone.k8s.io", map[string]any{"kube-aggregator.kubernetes.io/automanaged": "onstart"})
	stale("v1.own.k8s.io", "own.k8s.io", nil)
	for name, labels := range map[string]string{"v1.apps": "onstart", "v1.batch": ""} {
		waittest.Until(t, name+" is there", func() bool {
			_, err := api.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil
		})
		patch := fmt.Sprintf(`{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":%q}},`+
			`"spec":{"groupPriorityMinimum":7}}`, labels)
		if _, err := api.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	second, stop := servertest.StartOn(t, st, ca, nil)
	api = services(second)
	priority := func(name string) int64 {
		svc, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return -1
		}
		n, _, _ := unstructured.NestedInt64(svc.Object, "spec", "groupPriorityMinimum")
		return n
	}
	waittest.Until(t, "the earlier start's APIServices are reconciled", func() bool {
		return priority("v1.apps") > 7 && priority("v1.gone.k8s.io") == -1
	})
	if a, b := priority("v1.batch"), priority("v1.own.k8s.io"); a != 7 || b != 2000 {
		t.Errorf("those without the label have the priorities %d and %d, want 7 and 2000", a, b)
	}
	waittest.Until(t, "v1.own.k8s.io is available", func() bool {
		svc, err := api.Get(t.Context(), "v1.own.k8s.io", metav1.GetOptions{})
		return err == nil && strings.Contains(fmt.Sprint(svc.Object["status"]), "Local")
	})
	before, err := api.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	third, stop := servertest.StartOn(t, st, ca, nil)
	defer stop()
	api = services(third)
	if err := api.Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "v1.apps is there again", func() bool { return priority("v1.apps") > 7 }) // after the first pass
	for _, old := range before.Items {
		svc, err := api.Get(t.Context(), old.GetName(), metav1.GetOptions{})
		if err != nil || old.GetName() != "v1.apps" && svc.GetResourceVersion() != old.GetResourceVersion() {
			t.Errorf("%s was written: %v", old.GetName(), err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package unmodified

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"keelson/cluster"
)

// shopDefinition has the placeholders URL (of the webhooks) and CA.
const shopDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shops.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: shops, singular: shop, kind: Shop, listKind: ShopList}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "URL/convert", caBundle: CA}}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Ready, type: integer, jsonPath: .status.ready}]
    schema: {openAPIV3Schema: {type: object, properties: {
      spec: {type: object, properties: {replicas: {type: integer, minimum: 0}, image: {type: string}}},
      status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
  - name: v1beta1
    served: true
    storage: false
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {
      spec: {type: object, properties: {size: {type: string}, image: {type: string}}},
      status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`

const shopHooks = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: shops}
webhooks:
- name: default.shops.example.com
  clientConfig: {url: "URL/mutate-example-com-v1-shop", caBundle: CA}
  rules: [{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [shops]}]
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 30
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: shops}
webhooks:
- name: judge.shops.example.com
  clientConfig: {url: "URL/validate-example-com-v1-shop", caBundle: CA}
  rules: [{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [shops]}]
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 30
`

// TestOperator runs two replicas of an operator built on controller-runtime: its webhooks default, judge and convert,
// its reconciler makes and repairs what a shop owns, a finalizer is honoured, and the second replica takes over when
// the first is killed.
func TestOperator(t *testing.T) {
	bin := buildOperator(t)
	running := start(t, func(c *cluster.Config) { c.Rootless = true }) // with a fake node, where pods become Ready
	certs, ca := certificate(t)
	port := freePort(t)
	fill := strings.NewReplacer("URL", "https://127.0.0.1:"+strconv.Itoa(port), "CA}",
		base64.StdEncoding.EncodeToString(ca)+"}")
	running.must(t, fill.Replace(shopDefinition), "apply", "-f", "-")
	running.must(t, "", "wait", "--for=condition=Established", "crd/shops.example.com", "--timeout=60s")
	leader := launch(t, bin, "--kubeconfig", running.kubeconfig, "--cert-dir", certs, "--webhook-port",
		strconv.Itoa(freePort(t)))
	first := leaderAfter(t, running, "")
	second := launch(t, bin, "--kubeconfig", running.kubeconfig, "--cert-dir", certs, "--webhook-port",
		strconv.Itoa(port))
	running.must(t, fill.Replace(shopHooks), "apply", "-f", "-")
	eventually(t, "the webhooks to listen", func() string {
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			return err.Error()
		}
		_ = conn.Close()
		return ""
	})
	shops := func(version string) dynamic.ResourceInterface {
		return running.dynamic.Resource(schema.GroupVersionResource{
			Group:    "example.com",
			Version:  version,
			Resource: "shops",
		}).Namespace("default")
	}
	eventually(t, "the webhooks to be asked", func() string {
		u, err := shops("v1").Create(t.Context(), shop("v1", "tried", map[string]any{"replicas": int64(1)}),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		if image, _, _ := unstructured.NestedString(u.Object, "spec", "image"); image == "" {
			return "no webhook sets the shop's image"
		}
		_, err = shops("v1").Create(t.Context(), shop("v1", "tried", map[string]any{"replicas": int64(11)}),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return "no webhook refuses a shop that is too big"
		}
		return ""
	})
	openShop(t, running, shops)
	judgeShops(t, shops)

	leader.end(t, syscall.SIGKILL)
	if _, err := shops("v1").Create(t.Context(), shop("v1", "b", map[string]any{"replicas": int64(1)}),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	leaderAfter(t, running, first)
	waitReady(t, shops("v1"), "b", 1)
	closeShops(t, running, shops)
	second.end(t, syscall.SIGTERM)
	lease, err := running.CoordinationV1().Leases("default").Get(t.Context(), "shops.example.com", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		t.Errorf("the last replica did not let go of its lease: %+v, %v", lease.Spec, err)
	}
}

// openShop makes a shop in the old version, sees it come up, repairs what a user breaks, and grows.
func openShop(t *testing.T, r *running, shops func(string) dynamic.ResourceInterface) {
	t.Helper()
	ctx := t.Context()
	made, err := shops("v1beta1").Create(ctx, shop("v1beta1", "a", map[string]any{"size": "2"}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedString(made.Object, "spec", "size"); size != "2" ||
		made.GetAPIVersion() != "example.com/v1beta1" {
		t.Errorf("created: %v", made.Object)
	}
	live := waitReady(t, shops("v1"), "a", 2)
	if image, _, _ := unstructured.NestedString(live.Object, "spec", "image"); image != "shop:latest" {
		t.Errorf("the image was not defaulted: %v", live.Object["spec"])
	}
	if f := live.GetFinalizers(); len(f) != 1 || f[0] != "example.com/farewell" {
		t.Errorf("finalizers are %v", f)
	}
	deployment, err := r.AppsV1().Deployments("default").Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if o := metav1.GetControllerOf(deployment); o == nil || o.UID != made.GetUID() || o.Kind != "Shop" ||
		o.APIVersion != "example.com/v1" {
		t.Errorf("the deployment's owner is %+v", o)
	}
	if err := r.AppsV1().Deployments("default").Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deployment to be made again", func() string {
		again, err := r.AppsV1().Deployments("default").Get(ctx, "a", metav1.GetOptions{})
		if err != nil || again.UID == deployment.UID {
			return fmt.Sprintf("the old one or %v", err)
		}
		return ""
	})
	r.must(t, "", "patch", "shop", "a", "--type=merge", "-p", `{"spec":{"replicas":3}}`)
	waitReady(t, shops("v1"), "a", 3)
	old, err := shops("v1beta1").Get(ctx, "a", metav1.GetOptions{})
	if size, _, _ := unstructured.NestedString(old.Object, "spec", "size"); err != nil || size != "3" {
		t.Errorf("the old version says %q, %v", size, err)
	}
	r.must(t, "", "wait", "--for=condition=Open", "shop/a", "--timeout=60s")
}

// judgeShops sees the validating webhook refuse and warn.
func judgeShops(t *testing.T, shops func(string) dynamic.ResourceInterface) {
	t.Helper()
	ctx := t.Context()
	_, err := shops("v1").Create(ctx, shop("v1", "big", map[string]any{"replicas": int64(11)}), metav1.CreateOptions{})
	want := `admission webhook "judge.shops.example.com" denied the request: spec.replicas: a shop has at most 10`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = shops("v1beta1").Create(ctx, shop("v1beta1", "odd", map[string]any{"size": "many"}),
		metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), `parsing "many": invalid syntax`) {
		t.Errorf("what cannot be converted: %v", err)
	}
	if l, err := shops("v1").List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
		t.Errorf("%d shops, %v", len(l.Items), err)
	}
}

// closeShops deletes both shops; one is protected first. What they own goes with them.
func closeShops(t *testing.T, r *running, shops func(string) dynamic.ResourceInterface) {
	t.Helper()
	r.must(t, "", "annotate", "shop", "b", "example.com/protected=yes")
	if out, err := r.kubectl(t, "", "delete", "shop", "b"); err == nil ||
		!strings.Contains(out, "this shop is protected") {
		t.Errorf("deletion of a protected shop: %v, %s", err, out)
	}
	r.must(t, "", "annotate", "shop", "b", "example.com/protected-")
	r.must(t, "", "delete", "shop", "a", "b", "--timeout=90s")
	for _, name := range []string{"a", "b"} {
		if _, err := r.CoreV1().ConfigMaps("default").Get(t.Context(), name+"-farewell",
			metav1.GetOptions{}); err != nil {
			t.Errorf("the finalizer of %s did not run: %v", name, err)
		}
	}
	eventually(t, "what the shops owned to go", func() string {
		return strings.TrimSpace(r.must(t, "", "get", "deployments,replicasets,pods", "-o", "name"))
	})
	if l, err := shops("v1").List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 0 {
		t.Errorf("%d shops, %v", len(l.Items), err)
	}
}

func shop(version, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/" + version,
		"kind":       "Shop",
		"metadata":   map[string]any{"name": name, "namespace": "default"},
		"spec":       spec,
	}}
}

// waitReady waits until the status of a shop speaks of its newest generation and of n replicas.
func waitReady(t *testing.T, shops dynamic.ResourceInterface, name string, n int64) *unstructured.Unstructured {
	t.Helper()
	var last *unstructured.Unstructured
	eventually(t, "shop "+name, func() string {
		u, err := shops.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		ready, _, _ := unstructured.NestedInt64(u.Object, "status", "ready")
		seen, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
		if ready != n || seen != u.GetGeneration() {
			return fmt.Sprintf("want %d ready, status is %v", n, u.Object["status"])
		}
		last = u
		return ""
	})
	return last
}

// leaderAfter waits for a leader that is not before.
func leaderAfter(t *testing.T, r *running, before string) (name string) {
	t.Helper()
	eventually(t, "a leader", func() string {
		l, err := r.CoordinationV1().Leases("default").Get(t.Context(), "shops.example.com", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || *l.Spec.HolderIdentity == before {
			return "still the old one"
		}
		name = *l.Spec.HolderIdentity
		return ""
	})
	return name
}

// buildOperator builds testdata/operator.txtar with the requirements of test/clients, or skips the test where those
// cannot be had.
func buildOperator(t *testing.T) string {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/operator.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join("../clients", name))
		if err != nil {
			t.Fatal(err)
		}
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: b})
	}
	dir := t.TempDir()
	for _, f := range archive.Files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		return cmd.CombinedOutput()
	}
	if out, err := run("list", "-deps", "."); err != nil {
		t.Skipf("SKIPPED: the modules of test/clients are not there (%v); `make tools` fetches them\n%s", err,
			out[:min(len(out), 1000)])
	}
	bin := filepath.Join(dir, "operator")
	if out, err := run("build", "-ldflags", "-s -w", "-o", bin, "."); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, out)
	}
	return bin
}

// freePort finds a port below those that the kernel hands out by itself, so that it stays free until a program listens
// there.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 20000 + mathrand.IntN(10000)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port
	}
	t.Fatal("no free port between 20000 and 30000")
	return 0
}

// certificate makes one for 127.0.0.1 that vouches for itself.
func certificate(t *testing.T) (dir string, certPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "operator"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, b := range map[string][]byte{
		"tls.crt": certPEM,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, certPEM
}

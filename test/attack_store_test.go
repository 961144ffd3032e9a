// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// storeAttacks are what requests that are refused, or objects that are kept, cost those who share the server.
var storeAttacks = []attack{
	{name: "store-quota", up: withQuota(attackQuota), run: attackQuotaOfStore},
	{
		name: "full-store",
		up:   append(withQuota(attackQuota), "--eviction-hard=memory.available<1Mi"), // a full disk is no part of it
		run:  attackFullStore,
	},
	{name: "rejected-objects", run: attackRejected},
	{name: "always-allow", up: []string{"--authorization-mode=RBAC,AlwaysAllow"}, run: attackAlwaysAllow},
}

const (
	attackQuota = 3_000_000
	noSpace     = "etcdserver: mvcc: database space exceeded"
)

// withQuota is a cluster with a small store, and with a node that renews its lease often.
func withQuota(quota int) []string {
	return []string{fmt.Sprintf("--quota-backend-bytes=%d", quota), "--fake-nodes=1", "--fake-nodes-heartbeat=2s"}
}

// attackQuotaOfStore fills the store, tries to get around its quota, and starts the cluster again with less.
func attackQuotaOfStore(t *testing.T, c *live) {
	c.must(t, "create", "serviceaccount", "tenant")
	c.must(t, "create", "role", "all", "--verb=*",
		"--resource=pods,pods/status,configmaps,leases.coordination.k8s.io,events")
	c.must(t, "create", "rolebinding", "tenant", "--role=all", "--serviceaccount=default:tenant")
	c.must(t, "create", "configmap", "held", "--from-literal=a=b")
	c.must(t, "patch", "configmap", "held", "--type=merge", "-p",
		`{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`)
	c.must(t, "run", "victim", "--image=keelson.local/hello")
	c.must(t, "wait", "pod/victim", "--for=condition=Ready", "--timeout=60s")
	made := fillStore(t, c)
	if made < 5 {
		t.Fatalf("%d objects of 100 kB were within the quota", made)
	}
	tenant := []string{"--as=system:serviceaccount:default:tenant"}
	large := strings.Repeat("x", 100_000)
	refused := func(what, doc string, args ...string) {
		t.Helper()
		out, err := c.kubectl(strings.NewReader(doc), append(args, tenant...)...)
		if err == nil || !strings.Contains(out, noSpace) {
			t.Errorf("%s: got %v, want %q: %.300s", what, err, noSpace, out)
		}
	}
	annotated := `{"metadata":{"annotations":{"x":"` + large + `"}}}`
	refused("a larger object", "", "patch", "configmap", "held", "--type=merge", "-p", annotated)
	refused("a larger status", "", "patch", "pod", "victim", "--subresource=status", "--type=merge", "-p",
		`{"status":{"message":"`+large+`"}}`)
	refused("a lease",
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l","annotations":{"x":"`+large+
			`"}}}`, "create", "-f", "-")
	runsWhenFull(t, c)
	c.must(t, "delete", "pod", "victim", "--timeout=60s")
	c.must(t, "delete", "configmap", "held", "--wait=false")
	for _, left := range []string{`["example.com/b"]`, `null`} {
		c.must(t,
			append([]string{"patch", "configmap", "held", "--type=merge", "-p", `{"metadata":{"finalizers":` + left +
				`}}`}, tenant...)...)
	}
	if out, err := c.kubectl(nil, "get", "configmap", "held"); err == nil {
		t.Errorf("the object is there although its finalizers are gone: %s", out)
	}
	c.kill(t)
	c.start(t, withQuota(attackQuota/3)...)
	refused("a new object after a start with a smaller quota", "", "create", "configmap", "more", "--from-literal=a=b")
	runsWhenFull(t, c)
	c.must(t, "delete", "configmaps", "-l", "attack=quota", "--timeout=60s")
	c.must(t, "create", "configmap", "more", "--from-literal=a=b")
}

// fillStore creates objects of 100 kB until they are refused.
func fillStore(t *testing.T, c *live) int {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.config(t))
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]string{"a": strings.Repeat("x", 100_000)}
	for i := range 100 {
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name:   fmt.Sprintf("fill-%d", i),
				Labels: map[string]string{"attack": "quota"},
			},
			Data: data,
		}
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil && err.Error() == noSpace {
			// Smaller ones find the room that is left.
			data["a"] = data["a"][:len(data["a"])/2]
			if len(data["a"]) == 0 {
				return i
			}
			continue
		}
		if err != nil {
			t.Fatalf("object %d: got %v, want %q", i, err, noSpace)
		}
	}
	t.Fatal("100 objects were within the quota")
	return 0
}

// runsWhenFull waits until a node has renewed its lease, and reports whether all are Ready.
func runsWhenFull(t *testing.T, c *live) {
	t.Helper()
	renewed := func() string {
		return c.must(t, "get", "lease", "-n", "kube-node-lease", "-o", "jsonpath={.items[*].spec.renewTime}")
	}
	before := renewed()
	for end := time.Now().Add(patience); renewed() == before; time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("no node has renewed its lease since %s", before)
		}
	}
	c.must(t, "wait", "node", "--all", "--for=condition=Ready", "--timeout=30s")
}

// attackRejected sends objects with a million errors, by an account without a role where it may, and does not wait for
// the answers.
func attackRejected(t *testing.T, c *live) {
	c.must(t, "create", "role", "make", "--verb=create", "--resource=pods,configmaps")
	c.must(t, "create", "rolebinding", "make", "--role=make", "--serviceaccount=tenant:default")
	as := func(user string) *rest.Config {
		cfg := c.config(t)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		return cfg
	}
	cfg := as("system:serviceaccount:default:nothing")
	tenant := as("system:serviceaccount:tenant:default")
	review := `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"labelSelector":{"requirements":[` +
		strings.TrimSuffix(strings.Repeat("{},", 20_000), ",") + `]}}}}`
	const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	began := time.Now()
	status, answer := post(t, cfg, reviews, review, time.Minute)
	if took := time.Since(began); took > 2*time.Second || status != http.StatusUnprocessableEntity ||
		len(answer) > 2*len(review) || !strings.Contains(answer, " more]") {
		t.Errorf("a review of %d bytes: status %d, %d bytes, after %v: %.200s", len(review), status, len(answer), took,
			answer)
	}
	many := func(n int, one string) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	const head, pods = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[`,
		"/api/v1/namespaces/default/pods"
	owned := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","ownerReferences":[` + many(99_000,
		`{"name":"a"}`) + `]}}`
	// two bytes become a container of a kilobyte, and a key in an entry of six bytes is as long as what follows
	field := func(number byte, value []byte) []byte {
		return protowire.AppendBytes([]byte{number<<3 | 2}, value)
	}
	proto := func(kind string, raw []byte) string {
		return "k8s\x00" + string(field(1, field(2, []byte(kind)))) + string(field(2, raw))
	}
	tiny := proto("Pod", field(2, bytes.Repeat([]byte{2<<3 | 2, 0}, 1_500_000)))
	entry := []byte{12<<3 | 2, 4, 1<<3 | 2, 0x80, 0x80, 0x10}
	overlapping := proto("SelfSubjectAccessReview", field(1, append(bytes.Repeat(entry, 100_000),
		field(11, make([]byte, 1<<18))...)))
	value := strings.Replace(review, `{},`, `{"key":"`+strings.Repeat(`\u0001`, 480_000)+`"},`, 1)
	for what, one := range map[string]struct {
		cfg        *rest.Config
		path, body string
	}{
		"large reviews":       {cfg, reviews, strings.Replace(review, "{},", many(950_000, "{}")+",", 1)},
		"reviews":             {cfg, reviews, strings.Replace(review, "{},", many(29_000, `{"values":["a"]}`)+",", 1)},
		"reviews with values": {cfg, reviews, value},
		"large pods":          {tenant, pods, head + many(990_000, "{}") + `]}}`},
		"pods":                {tenant, pods, head + many(99_000, `{"name":"_","image":"x"}`) + `]}}`},
		"owned objects":       {tenant, "/api/v1/namespaces/default/configmaps", owned},
		"tiny containers":     {tenant, pods, tiny},
		"overlapping entries": {cfg, reviews, overlapping},
	} {
		c.resetPeak(t)
		before := c.memory(t, "VmRSS")
		c.alive(t, func() {
			var wg sync.WaitGroup
			for range 12 {
				wg.Go(func() { post(t, one.cfg, one.path, one.body, 500*time.Millisecond) })
			}
			wg.Wait()
			post(t, one.cfg, one.path, one.body, time.Minute)
		})
		more := c.memory(t, "VmHWM") - before
		t.Logf("12 rejected %s of %d kB: %d MB more than %d", what, len(one.body)>>10, more, before)
		if more > 768 {
			t.Errorf("12 rejected %s took %d MB more, want under 768", what, more)
		}
	}
}

// post sends body and returns what came back within limit.
func post(t *testing.T, cfg *rest.Config, path, body string, limit time.Duration) (status int, answer string) {
	cl, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, cfg.Host+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	req.Header.Set("Content-Type", "application/json")
	if strings.HasPrefix(body, "k8s\x00") {
		req.Header.Set("Content-Type", "application/vnd.kubernetes.protobuf")
	}
	resp, err := cl.Do(req)
	if err != nil {
		return 0, "" // it did not wait
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// attackAlwaysAllow reads Secrets without a credential from a server that allows everything to everybody.
func attackAlwaysAllow(t *testing.T, c *live) {
	// a stranger does not care
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, path := range []string{"/api/v1/secrets", "/api/v1/namespaces/kube-system/configmaps", "/apis"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.config(t).Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s answers a stranger %s", path, resp.Status)
		}
	}
}

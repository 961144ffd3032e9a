// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// serverAttacks are what a client does to the API server.
var serverAttacks = []attack{
	{name: "json-patch-that-doubles", run: attackJSONPatch},
	{name: "lists-of-60000", run: attackLists},
	{name: "cookies-in-pieces", run: attackCookies},
	{name: "idle-connections", run: attackConnections},
	{name: "apply-deep-and-wide", run: attackApply},
	{name: "watches-by-the-thousand", run: attackWatches},
	{name: "connections-of-one-token", run: attackShares},
}

// attackJSONPatch copies a value into itself 40 times: 2 kB would come to terabytes.
func attackJSONPatch(t *testing.T, c *live) {
	c.must(t, "create", "configmap", "victim", "--from-literal=a=b")
	c.resetPeak(t)
	before := c.memory(t, "VmRSS")
	var ops []string
	ops = append(ops, `{"op":"add","path":"/metadata/annotations","value":{"x":"`+strings.Repeat("x", 64)+`"}}`)
	for i := range 40 {
		ops = append(ops,
			fmt.Sprintf(`{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/c%d"}`, i))
	}
	c.alive(t, func() {
		began := time.Now()
		out, err := c.kubectl(nil, "patch", "configmap", "victim", "--type=json", "-p", "["+strings.Join(ops, ",")+"]")
		if err == nil {
			t.Errorf("the patch was taken: %s", out)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the patch was refused after %v: %s", took, out)
		}
	})
	if more := c.memory(t, "VmHWM") - before; more > 200 {
		t.Errorf("the patch took %d MB", more)
	}
}

// attackLists asks 60 times at once for 60,000 objects, in every encoding, and leaves half way.
func attackLists(t *testing.T, c *live) {
	cfg := c.config(t)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const objects, writers = 60_000, 32
	var wg sync.WaitGroup
	var next atomic.Int64
	for range writers {
		wg.Go(func() {
			for i := next.Add(1); i <= objects; i = next.Add(1) {
				cm := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)},
					Data:       map[string]string{"key": strings.Repeat("v", 300)},
				}
				if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), cm,
					metav1.CreateOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, accept := range []string{
		"application/yaml", "application/json", "application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io",
	} {
		before := c.memory(t, "VmRSS")
		c.resetPeak(t)
		c.alive(t, func() {
			var wg sync.WaitGroup
			for i := range 60 {
				wg.Go(func() { getAndLeave(t, c, accept, i%2 == 0) })
			}
			wg.Wait()
		})
		more := c.memory(t, "VmHWM") - before
		t.Logf("60 lists as %s: %d MB more than %d", accept, more, before)
		if more > 1024 {
			t.Errorf("60 lists as %s took %d MB more, want under 1 GB", accept, more)
		}
	}
}

func getAndLeave(t *testing.T, c *live, accept string, early bool) {
	cfg := c.config(t)
	cl, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/api/v1/namespaces/default/configmaps",
		http.NoBody)
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Accept", accept)
	resp, err := cl.Do(req)
	if err != nil {
		return // too many requests at once: a time-out is an answer
	}
	defer func() { _ = resp.Body.Close() }()
	var n int64 = 1 << 40
	if early {
		n = 1 << 20
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, n))
}

// attackCookies sends requests whose cookies come in 27,000 fields of a byte each. The client is anonymous.
func attackCookies(t *testing.T, c *live) {
	u, err := url.Parse(c.config(t).Host)
	if err != nil {
		t.Fatal(err)
	}
	cpu := c.cpu(t)
	const requests = 100
	for range requests / 20 {
		// who attacks does not check
		conn, err := tls.Dial("tcp", u.Host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if err := writeCookies(conn, uint32(2*i+1), i == 0); err != nil { // small
				break // closed: that is an answer
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	if each := (c.cpu(t) - cpu) / requests; each > 40*time.Millisecond {
		t.Errorf("a request with 27,000 cookie fields took %v of processor time, want under 40 ms", each)
	}
}

// attackConnections opens connections and says nothing, in a cluster that may have 1,500 files open.
func attackConnections(t *testing.T, c *live) {
	c.restartWithFewFiles(t)
	u, err := url.Parse(c.config(t).Host)
	if err != nil {
		t.Fatal(err)
	}
	c.alive(t, func() {
		var conns []net.Conn
		for range 2500 {
			conn, err := net.DialTimeout("tcp", u.Host, time.Second)
			if err != nil {
				break
			}
			conns = append(conns, conn)
		}
		for i := range 20 {
			if out, err := c.kubectl(nil, "create", "configmap", fmt.Sprintf("written-%d", i),
				"--from-literal=a=b"); err != nil {
				t.Errorf("write with %d idle connections: %v\n%s", len(conns), err, out)
				break
			}
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	c.must(t, "run", "after", "--image=keelson.local/hello")
	c.must(t, "wait", "--for=condition=Ready", "pod/after", "--timeout=60s")
}

// restartWithFewFiles starts the cluster again as a process that may have 1,500 files open: 600 connections of the API.
func (c *live) restartWithFewFiles(t *testing.T) {
	t.Helper()
	if out, err := c.keelson("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command("bash", "-c", `ulimit -n 1500 && exec "$@"`, "up", c.bin, "up", "--detach", "--port", "0",
		"--data-dir", c.data)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("keelson up: %v\n%s", err, out)
	}
}

// attackShares takes nine tenths of the connections with a token that has no role, while strangers come and go on the
// rest. All come from this machine. The administrator's new connections get through, and watches that were there before
// stay.
func attackShares(t *testing.T, c *live) {
	c.restartWithFewFiles(t)
	c.must(t, "create", "namespace", "tenant")
	c.must(t, "create", "serviceaccount", "-n", "tenant", "no-one")
	token := strings.TrimSpace(c.must(t, "create", "token", "-n", "tenant", "no-one"))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	watch := c.startWatch(ctx, t, &wg)
	flood := &flood{url: c.config(t).Host, ctx: ctx}
	defer flood.close()
	for range 540 {
		flood.request(token)
	}
	for range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				flood.request("")
			}
		})
	}
	c.alive(t, func() {
		began := flood.sent.Load()
		for i := range 8 {
			one := time.Now()
			if out, err := c.kubectl(nil, "get", "--raw", "/api/v1/namespaces/default"); err != nil {
				t.Errorf("request %d of the administrator, after %v: %v\n%s", i, time.Since(one), err, out)
			}
			t.Logf("request %d of the administrator took %v with its process", i,
				time.Since(one).Round(time.Millisecond))
		}
		t.Logf("%d connections of strangers meanwhile", flood.sent.Load()-began)
	})
	if n := flood.sent.Load(); n < 1000 {
		t.Errorf("%d connections are no flood", n)
	}
	select {
	case err := <-watch:
		t.Errorf("the administrator's watch ended: %v", err)
	default:
	}
}

// startWatch watches the namespaces as the administrator; the channel has what ended the watch before ctx was done.
func (c *live) startWatch(
	ctx context.Context, t *testing.T, wg *sync.WaitGroup,
) <-chan error {
	t.Helper()
	cfg := c.config(t)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/api/v1/namespaces?watch=true", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := ownClient(t, cfg).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	wg.Go(func() {
		defer func() { _ = resp.Body.Close() }()
		_, err := io.Copy(io.Discard, resp.Body)
		if ctx.Err() == nil {
			ended <- fmt.Errorf("end of stream: %w", err)
		}
	})
	return ended
}

// flood opens connections that stay open after a request.
type flood struct {
	url  string
	ctx  context.Context // of the attack, which the flood is a part of
	sent atomic.Int64    // requests

	mu    sync.Mutex
	conns []net.Conn
}

// request sends a request on a connection of its own; without a token it is anonymous.
func (f *flood) request(token string) {
	// who attacks does not check
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
	conn, err := dialer.DialContext(f.ctx, "tcp", strings.TrimPrefix(f.url, "https://"))
	f.sent.Add(1)
	if err != nil {
		return // refused: that is an answer
	}
	f.mu.Lock()
	f.conns = append(f.conns, conn)
	f.mu.Unlock()
	header := ""
	if token != "" {
		header = "Authorization: Bearer " + token + "\r\n"
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: x\r\n"+header+"\r\n"); err != nil {
		return
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

func (f *flood) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		_ = c.Close()
	}
}

// attackApply applies objects of 9,000 levels and of 60,000 keys, 20 at a time.
func attackApply(t *testing.T, c *live) {
	c.apply(t, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.attack.test}
spec:
  group: attack.test
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
`)
	c.must(t, "wait", "--for=condition=Established", "crd/things.attack.test", "--timeout=60s")
	deep := strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000)
	var wide strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&wide, `,"k%d":1`, i)
	}
	cfg := c.config(t)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]string{"deep": deep, "wide": "{" + wide.String()[1:] + "}"} {
		c.alive(t, func() {
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					body := fmt.Sprintf(
						`{"apiVersion":"attack.test/v1","kind":"Thing","metadata":{"name":"%s-%d"},"spec":%s}`, name,
						i, spec)
					began := time.Now()
					_, err := client.CoreV1().RESTClient().Patch(types.ApplyPatchType).
						AbsPath("/apis/attack.test/v1/namespaces/default/things/"+fmt.Sprintf("%s-%d", name, i)).
						Param("fieldManager", "attacker").Body([]byte(body)).DoRaw(t.Context())
					// wide ones are within the limits: no time-out
					if refused := err != nil; refused != (name == "deep") {
						t.Errorf("apply %s: %v after %v", name, err, time.Since(began).Round(time.Millisecond))
					}
					if i == 0 {
						t.Logf("apply %s: %v after %v", name, err, time.Since(began).Round(time.Millisecond))
					}
				})
			}
			wg.Wait()
		})
	}
}

// attackWatches opens 5,000 watches with the administrator's rights, from 50 clients. Go's client dials once for each
// request that finds no connection: there are thousands of handshakes as well.
func attackWatches(t *testing.T, c *live) {
	cfg := c.config(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.alive(t, func() {
		var wg sync.WaitGroup
		var open atomic.Int64
		for range 50 {
			h := ownClient(t, cfg)
			for range 100 {
				wg.Go(func() {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/api/v1/pods?watch=true",
						http.NoBody)
					if err != nil {
						return
					}
					resp, err := h.Do(req)
					if err != nil {
						return
					}
					defer func() { _ = resp.Body.Close() }()
					open.Add(1)
					_, _ = io.Copy(io.Discard, bufio.NewReader(resp.Body))
				})
			}
		}
		time.Sleep(20 * time.Second) // the attack's length
		t.Logf("%d watches were open", open.Load())
		cancel()
		wg.Wait()
	})
}

// writeCookies writes the frames of a request whose cookies come in 27,000 fields.
func writeCookies(out io.Writer, stream uint32, first bool) error {
	var buf bytes.Buffer
	if first {
		buf.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		buf.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // SETTINGS
	}
	var block bytes.Buffer
	block.Write([]byte{0x82, 0x87, 0x84, 0x41, 1, 'a'}) // GET, https, /, :authority a
	block.Write([]byte{0x60, 1, 'c'})                   // cookie: c, indexed
	for range 27_000 {
		block.WriteByte(0xbe) // the same again: one byte
	}
	rest := block.Bytes()
	kind := byte(1) // HEADERS, then CONTINUATION
	for len(rest) > 0 {
		part := rest[:min(16_000, len(rest))]
		rest = rest[len(part):]
		var flags byte
		if kind == 1 {
			flags |= 1 // END_STREAM
		}
		if len(rest) == 0 {
			flags |= 4 // END_HEADERS
		}
		buf.Write([]byte{byte(len(part) >> 16), byte(len(part) >> 8), byte(len(part)), kind, flags, byte(
			stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)})
		buf.Write(part)
		kind = 9
	}
	_, err := out.Write(buf.Bytes())
	return err
}

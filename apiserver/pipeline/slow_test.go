// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// raw is a connection of the administrator's over which a test says what no client library would.
func raw(t *testing.T, r *servertest.Running) net.Conn {
	t.Helper()
	cfg, err := rest.TLSConfigFor(r.Rest)
	if err != nil {
		t.Fatal(err)
	}
	cfg.NextProtos = []string{"http/1.1"}
	cfg.ServerName = "127.0.0.1"
	plain, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.Rest.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	if tcp, ok := plain.(*net.TCPConn); ok {
		if err := tcp.SetReadBuffer(64 << 10); err != nil { // so that what is not read does not vanish in the kernel
			t.Fatal(err)
		}
	}
	c := tls.Client(plain, cfg)
	t.Cleanup(func() { _ = plain.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// says sends text.
func says(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// fill makes n objects of 900 KB each.
func fill(t *testing.T, r *servertest.Running, n int) {
	t.Helper()
	maps := r.Clients(t).CoreV1().ConfigMaps("default")
	for i := range n {
		m := servertest.ConfigMap(fmt.Sprintf("big%d", i))
		m.Data = map[string]string{"a": strings.Repeat("x", 900<<10)}
		if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

const readersNow = `apiserver_current_inflight_requests{request_kind="readOnly"}`

// TestSlowBody: a client that does not send the announced body gets an error, and holds nothing.
func TestSlowBody(t *testing.T) {
	servertest.NoLeaks(t)
	running := servertest.Start(t, nil)
	for _, method := range []string{"POST " + servertest.MapsPath, "PUT " + servertest.MapsPath + "/x", "PATCH " + servertest.MapsPath + "/x"} {
		conn := raw(t, running)
		media := "application/json"
		if strings.HasPrefix(method, "PATCH") {
			media = servertest.MergePatch
			running.Call(t, "POST", servertest.MapsPath, `{"metadata":{"name":"x"}}`).Wants(t, "another client's create", 201, "")
		}
		says(t, conn, method+"?timeout=500ms HTTP/1.1\r\nHost: k\r\nContent-Type: "+media+
			"\r\nContent-Length: 1000\r\n\r\n{\"apiVer")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		servertest.Reply{
			Code:   resp.StatusCode,
			Header: resp.Header,
			Body:   b,
		}.Wants(t, method+" without its body", 504, "request did not complete within the allotted timeout")
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
		_ = conn.Close()
	}
	waittest.Until(t, "no write is in flight", func() bool {
		return running.Gauge(t, `apiserver_current_inflight_requests{request_kind="mutating"}`) == "0"
	})
}

// TestClientThatDoesNotRead: an answer that is not read ends when the request's time is up; other requests are not
// delayed.
func TestClientThatDoesNotRead(t *testing.T) {
	servertest.NoLeaks(t)
	r := servertest.Start(t, nil)
	fill(t, r, 12)
	c := raw(t, r)
	says(t, c, "GET "+servertest.MapsPath+"?timeout=500ms HTTP/1.1\r\nHost: k\r\n\r\n")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // now the server is writing, more than the kernel takes
		t.Fatal(err)
	}
	waittest.Until(t, "it gives up", func() bool { return r.Gauge(t, readersNow) == "1" }) // and answers this question
	if n, _ := io.Copy(io.Discard, c); n >= 12*900<<10 {
		t.Errorf("%d bytes came: the whole answer", n)
	}
}

// TestSlowWatcher: a watcher that takes nothing is cut off; another one sees everything, in order.
func TestSlowWatcher(t *testing.T) {
	servertest.NoLeaks(t)
	running := servertest.Start(t, func(c *servertest.Setup) { c.Limits.WatchWriteTimeout = 5 * time.Second })
	conn := raw(t, running)
	says(t, conn, "GET "+servertest.MapsPath+"?watch=true HTTP/1.1\r\nHost: k\r\n\r\n")
	const watches = `apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"}`
	waittest.Until(t, "the watch runs", func() bool { return running.Gauge(t, watches) == "1" })
	frames, stop := running.Watch(t, servertest.MapsPath+"?watch=true")
	defer stop()
	const many = 16
	fill(t, running, many)
	for i := range many {
		servertest.Next(t, frames, "ADDED", fmt.Sprintf("big%d", i))
	}
	waittest.Until(t, "the slow watcher is cut off", func() bool { return running.Gauge(t, watches) == "1" })
	if n, _ := io.Copy(io.Discard, conn); n >= many*900<<10 {
		t.Errorf("%d bytes came: it was not slow", n)
	}
	if _, err := running.Clients(t).CoreV1().ConfigMaps("default").Create(t.Context(), servertest.ConfigMap("after"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	servertest.Next(t, frames, "ADDED", "after")
}

// TestHeaderLimit: a header beyond a megabyte is refused, and nothing else suffers.
func TestHeaderLimit(t *testing.T) {
	running := servertest.Start(t, nil)
	conn := raw(t, running)
	answered := make(chan int, 1)
	go func() { // ends with the connection, which the server or the test closes
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			answered <- 0
			return
		}
		_ = resp.Body.Close()
		answered <- resp.StatusCode
	}()
	// the server may hang up before the end
	_, _ = io.WriteString(conn, "GET "+servertest.MapsPath+" HTTP/1.1\r\nHost: k\r\nX-Long: "+strings.Repeat("x", 1<<20+16<<10)+
		"\r\n\r\n")
	if code := <-answered; code != http.StatusRequestHeaderFieldsTooLarge && code != 0 {
		t.Errorf("a header of more than a megabyte: %d, want 431 or the end of the connection", code)
	}
	running.Call(t, "GET", servertest.MapsPath, "", "X-Long", strings.Repeat("x", 100<<10)).Wants(t, "a header of 100 KB", 200, "")
}

// TestBomb: a body that says it is compressed is taken as it is, and is not blown up.
func TestBomb(t *testing.T) {
	r := servertest.Start(t, nil)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.Copy(z, io.LimitReader(zeros{}, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r.Call(t, "POST", servertest.MapsPath, bomb.String(), "Content-Encoding", "gzip").Wants(t, "a bomb", 400,
		"couldn't get version/kind; json parse error")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

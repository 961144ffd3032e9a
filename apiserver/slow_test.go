// SPDX-License-Identifier: Apache-2.0

package apiserver_test

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

	"keelson/lib/waittest"
)

// raw is a connection of the administrator's over which a test says what no client library would.
func (r *running) raw(t *testing.T) net.Conn {
	t.Helper()
	cfg, err := rest.TLSConfigFor(r.rest)
	if err != nil {
		t.Fatal(err)
	}
	cfg.NextProtos = []string{"http/1.1"}
	cfg.ServerName = "127.0.0.1"
	plain, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.rest.Host, "https://"))
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

// gauge reads one line of the metrics.
func (r *running) gauge(t *testing.T, line string) string {
	t.Helper()
	for text := range strings.SplitSeq(string(r.call(t, "GET", "/metrics", "", "Accept", "text/plain").Body), "\n") {
		if value, ok := strings.CutPrefix(text, line+" "); ok {
			return value
		}
	}
	return ""
}

// fill makes n objects of 900 KB each.
func (r *running) fill(t *testing.T, n int) {
	t.Helper()
	maps := r.clients(t).CoreV1().ConfigMaps("default")
	for i := range n {
		m := configMap(fmt.Sprintf("big%d", i))
		m.Data = map[string]string{"a": strings.Repeat("x", 900<<10)}
		if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

const readersNow = `apiserver_current_inflight_requests{request_kind="readOnly"}`

// TestSlowBody: a client that does not send the announced body gets an error, and holds nothing.
func TestSlowBody(t *testing.T) {
	noLeaks(t)
	running := start(t, nil)
	for _, method := range []string{"POST " + mapsPath, "PUT " + mapsPath + "/x", "PATCH " + mapsPath + "/x"} {
		conn := running.raw(t)
		media := "application/json"
		if strings.HasPrefix(method, "PATCH") {
			media = mergePatch
			running.call(t, "POST", mapsPath, `{"metadata":{"name":"x"}}`).wants(t, "another client's create", 201, "")
		}
		says(t, conn, method+"?timeout=500ms HTTP/1.1\r\nHost: k\r\nContent-Type: "+media+
			"\r\nContent-Length: 1000\r\n\r\n{\"apiVer")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		reply{
			resp.StatusCode, resp.Header, b,
		}.wants(t, method+" without its body", 504, "request did not complete within the allotted timeout")
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
		_ = conn.Close()
	}
	waittest.Until(t, "no write is in flight", func() bool {
		return running.gauge(t, `apiserver_current_inflight_requests{request_kind="mutating"}`) == "0"
	})
}

// TestClientThatDoesNotRead: an answer that is not read ends when the request's time is up; other requests are not
// delayed.
func TestClientThatDoesNotRead(t *testing.T) {
	noLeaks(t)
	r := start(t, nil)
	r.fill(t, 12)
	c := r.raw(t)
	says(t, c, "GET "+mapsPath+"?timeout=500ms HTTP/1.1\r\nHost: k\r\n\r\n")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // now the server is writing, more than the kernel takes
		t.Fatal(err)
	}
	waittest.Until(t, "it gives up", func() bool { return r.gauge(t, readersNow) == "1" }) // and answers this question
	if n, _ := io.Copy(io.Discard, c); n >= 12*900<<10 {
		t.Errorf("%d bytes came: the whole answer", n)
	}
}

// TestSlowWatcher: a watcher that takes nothing is cut off; another one sees everything, in order.
func TestSlowWatcher(t *testing.T) {
	noLeaks(t)
	running := start(t, func(c *setup) { c.WatchWriteTimeout = 5 * time.Second })
	conn := running.raw(t)
	says(t, conn, "GET "+mapsPath+"?watch=true HTTP/1.1\r\nHost: k\r\n\r\n")
	const watches = `apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"}`
	waittest.Until(t, "the watch runs", func() bool { return running.gauge(t, watches) == "1" })
	frames, stop := running.watching(t, mapsPath+"?watch=true")
	defer stop()
	const many = 16
	running.fill(t, many)
	for i := range many {
		next(t, frames, "ADDED", fmt.Sprintf("big%d", i))
	}
	waittest.Until(t, "the slow watcher is cut off", func() bool { return running.gauge(t, watches) == "1" })
	if n, _ := io.Copy(io.Discard, conn); n >= many*900<<10 {
		t.Errorf("%d bytes came: it was not slow", n)
	}
	if _, err := running.clients(t).CoreV1().ConfigMaps("default").Create(t.Context(), configMap("after"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	next(t, frames, "ADDED", "after")
}

// TestHeaderLimit: a header beyond a megabyte is refused, and nothing else suffers.
func TestHeaderLimit(t *testing.T) {
	running := start(t, nil)
	conn := running.raw(t)
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
	_, _ = io.WriteString(conn, "GET "+mapsPath+" HTTP/1.1\r\nHost: k\r\nX-Long: "+strings.Repeat("x", 1<<20+16<<10)+
		"\r\n\r\n")
	if code := <-answered; code != http.StatusRequestHeaderFieldsTooLarge && code != 0 {
		t.Errorf("a header of more than a megabyte: %d, want 431 or the end of the connection", code)
	}
	running.call(t, "GET", mapsPath, "", "X-Long", strings.Repeat("x", 100<<10)).wants(t, "a header of 100 KB", 200, "")
}

// TestBomb: a body that says it is compressed is taken as it is, and is not blown up.
func TestBomb(t *testing.T) {
	r := start(t, nil)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.Copy(z, io.LimitReader(zeros{}, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r.call(t, "POST", mapsPath, bomb.String(), "Content-Encoding", "gzip").wants(t, "a bomb", 400,
		"couldn't get version/kind; json parse error")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // what transport/spdy returns
	"k8s.io/client-go/transport/spdy"
)

// streamAttacks are what users with the right to exec or to forward ports send on these connections.
var streamAttacks = []attack{
	{name: "streams-of-large-frames", run: attackStreams},
}

// attackStreams has the kubelet keep what it never asked for: data that the command does not read, headers that are a
// thousand times larger than their frame, and connections to a pod.
func attackStreams(t *testing.T, c *live) {
	c.apply(t, strings.ReplaceAll(thief, "thief", "victim"))
	c.must(t, "wait", "--for=condition=Ready", "pod/victim", "--timeout=60s")
	before := c.memory(t, "VmRSS")
	files := c.openFiles(t)
	const exec = "exec?stdin=1&stdout=1&command=sleep&command=1000"
	for range 4 {
		conn := c.spdy(t, exec, "v4.channel.k8s.io")
		stream(conn, "error")
		in := stream(conn, "stdin")
		stream(conn, "stdout")
		go func() { // ends with the connection
			for range 50 {
				if _, err := in.Write(make([]byte, 16<<20-1)); err != nil {
					return
				}
			}
		}()
		bomb := c.spdy(t, exec, "v4.channel.k8s.io")
		go func() { // ends with the connection
			headers := http.Header{}
			for i := range 200 {
				headers[fmt.Sprint("x", i)] = []string{strings.Repeat("a", 1<<20-1)}
			}
			for range 20 {
				if _, err := bomb.CreateStream(headers); err != nil {
					return
				}
			}
		}()
	}
	forward := c.spdy(t, "portforward", "portforward.k8s.io")
	go func() { // ends with the connection
		for i := range 1000 {
			for _, kind := range []string{"error", "data"} {
				stream(forward, kind, "port", "80", "requestID", fmt.Sprint(i))
			}
		}
	}()
	var memory, most int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		memory = max(memory, c.memory(t, "VmRSS"))
		most = max(most, c.openFiles(t))
	}
	t.Logf("%d MB and %d files before, at most %d MB and %d files", before, files, memory, most)
	if memory > before+200 {
		t.Errorf("frames took %d MB", memory-before)
	}
	if most > files+400 {
		t.Errorf("one connection opened %d others", most-files)
	}
	if out := c.must(t, "exec", "victim", "--", "sh", "-c", "echo alive"); !strings.Contains(out, "alive") {
		t.Errorf("exec: %q", out)
	}
	c.must(t, "delete", "pod", "victim", "--now") // this ends the connections, whose writers wait
}

// spdy opens a connection for a subresource of the pod victim.
func (c *live) spdy(t *testing.T, path string, protocol string) httpstream.Connection {
	t.Helper()
	cfg := c.config(t)
	transport, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(cfg.Host + "/api/v1/namespaces/default/pods/victim/" + path)
	if err != nil {
		t.Fatal(err)
	}
	req := &http.Request{Method: http.MethodPost, URL: u, Header: http.Header{}, Body: http.NoBody}
	conn, _, err := spdy.Negotiate(upgrader, &http.Client{Transport: transport}, req, protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// stream opens a stream, and returns one that takes nothing when the connection has ended.
func stream(conn httpstream.Connection, kind string, headers ...string) interface{ Write(p []byte) (int, error) } {
	h := http.Header{"Streamtype": {kind}}
	for i := 0; i+1 < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	s, err := conn.CreateStream(h)
	if err != nil {
		return new(bytes.Buffer)
	}
	return s
}

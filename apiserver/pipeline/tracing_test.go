// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// asIs hands messages over without reading them.
type asIs struct{}

func (asIs) Name() string { return "proto" }

func (asIs) Marshal(v any) ([]byte, error) {
	if b, ok := v.(*[]byte); ok {
		return *b, nil
	}
	return nil, fmt.Errorf("message is a %T", v)
}

func (asIs) Unmarshal(b []byte, v any) error {
	into, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("message is a %T", v)
	}
	*into = bytes.Clone(b)
	return nil
}

// collector is an OTLP collector; got are the messages sent to it so far, one after the other.
func collector(t *testing.T) (addr string, got func() []byte) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []byte
	server := grpc.NewServer(grpc.ForceServerCodec(asIs{}), grpc.UnknownServiceHandler(func(
		_ any, stream grpc.ServerStream,
	) error {
		method, _ := grpc.MethodFromServerStream(stream)
		if method != "/opentelemetry.proto.collector.trace.v1.TraceService/Export" {
			return fmt.Errorf("no such method: %s", method)
		}
		var msg []byte
		if err := stream.RecvMsg(&msg); err != nil {
			return err
		}
		mu.Lock()
		all = append(all, msg...)
		mu.Unlock()
		return stream.SendMsg(&[]byte{})
	}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until Stop
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return listener.Addr().String(), func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Clone(all)
	}
}

// TestTracingExport: spans reach the collector that the file names, those of a client that samples as its children.
func TestTracingExport(t *testing.T) {
	addr, got := collector(t)
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: " + addr +
		"\nsamplingRatePerMillion: 0\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := servertest.Start(t, func(c *servertest.Setup) {
		var err error
		if c.Reports.Tracing, err = pipeline.LoadTracing(file); err != nil {
			t.Fatal(err)
		}
	})
	const trace = "0af7651916cd43dd8448eb211c80319c"
	r.Call(t, "POST", servertest.MapsPath, `{"metadata":{"name":"traced"}}`, "Traceparent", "00-"+trace+"-b7ad6b7169203331-01").
		Wants(t, "sampled by the client", 201, "")
	r.Call(t, "GET", "/api/v1/secrets", "").Wants(t, "not sampled", 200, "")
	id, err := hex.DecodeString(trace)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the span comes", func() bool { return bytes.Contains(got(), []byte("create configmaps")) })
	spans := got()
	for what, want := range map[string][]byte{
		"the trace of the client": id,
		"the service":             []byte("apiserver"),
		"the path":                []byte(servertest.MapsPath),
		"the time in the store":   []byte("store_ns"),
		"the agent":               []byte("tester/1"),
	} {
		if !bytes.Contains(spans, want) {
			t.Errorf("the span lacks %s: %q", what, spans)
		}
	}
	if bytes.Contains(spans, []byte("list secrets")) {
		t.Error("a request that is not sampled became a span")
	}
}

// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	runtimeforward "k8s.io/cri-streaming/pkg/streaming/portforward"
	runtimeexec "k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// streaming is a runtime's streaming server: commands repeat their input, ports too.
type streaming struct{}

func (streaming) ExecInContainer(
	_ context.Context, _, _, _ string, _ []string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan runtimeexec.TerminalSize, _ time.Duration,
) error {
	_, err := io.Copy(out, in)
	return err
}

func (streaming) PortForward(_ context.Context, _, _ string, _ int32, stream io.ReadWriteCloser) error {
	var b [5]byte
	if _, err := io.ReadFull(stream, b[:]); err != nil {
		return err
	}
	_, err := stream.Write(b[:])
	return err
}

func (s streaming) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const idle, create = time.Minute, 30 * time.Second
	if strings.HasPrefix(r.URL.Path, "/portforward") {
		runtimeforward.ServePortForward(w, r, s, "", "", &runtimeforward.V4Options{}, idle, create,
			runtimeforward.SupportedProtocols)
		return
	}
	runtimeexec.ServeExec(w, r, s, "", "", "", nil, &runtimeexec.Options{Stdin: true, Stdout: true}, idle, create,
		runtimeexec.SupportedStreamingProtocols)
}

// rest is the configuration of a client with the certificate of this name.
func (f *fixture) rest(t *testing.T, name string) *rest.Config {
	t.Helper()
	cert := f.ca.sign(t, name, false)
	key, err := x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return &rest.Config{Host: f.base, TLSClientConfig: rest.TLSClientConfig{
		CAData:   block("CERTIFICATE", f.ca.cert.Raw),
		CertData: block("CERTIFICATE", cert.Certificate[0]),
		KeyData:  block("EC PRIVATE KEY", key),
	}}
}

// TestWebsockets: the kubelet takes the websockets of exec and port-forward as clients send them, and translates them
// for a runtime that knows SPDY alone.
func TestWebsockets(t *testing.T) {
	for name, listen := range map[string]func(http.Handler) *httptest.Server{
		"in the clear": httptest.NewServer,
		"by TLS":       httptest.NewTLSServer,
	} {
		t.Run(name, func(t *testing.T) {
			fixture := serve(t)
			backend := listen(streaming{})
			t.Cleanup(backend.Close)
			fixture.rt.SetStreamURL(backend.URL)
			client := fixture.rest(t, "api")

			remote, err := remotecommand.NewWebSocketExecutor(client, http.MethodGet,
				fixture.base+"/exec/ns/web/c?command=cat&input=1&output=1")
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			in := strings.Repeat("hello, world\n", 10_000)
			err = remote.StreamWithContext(t.Context(), remotecommand.StreamOptions{
				Stdin:  strings.NewReader(in),
				Stdout: &out,
			})
			if err != nil || out.String() != in {
				t.Errorf("cat: %v, %d bytes of %d", err, out.Len(), len(in))
			}
			forwards(t, client, fixture.base+"/portForward/ns/web")
		})
	}
}

// forwards fails unless a port can be reached through a websocket.
func forwards(t *testing.T, client *rest.Config, to string) {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, client)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	ready := make(chan struct{})
	ended := make(chan error, 1)
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready,
		io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- forwarder.ForwardPorts() }() // ends with stop
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	defer func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Errorf("port-forward: %v", err)
		}
	}()
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Error(err)
	}
	var got [5]byte
	if _, err := io.ReadFull(conn, got[:]); err != nil || string(got[:]) != "hello" {
		t.Errorf("through the port: %q, %v", got, err)
	}
}

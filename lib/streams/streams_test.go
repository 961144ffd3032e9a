// SPDX-License-Identifier: Apache-2.0

package streams_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/moby/spdystream/spdy"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	kubeletforward "k8s.io/cri-streaming/pkg/streaming/portforward"
	kubeletexec "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"keelson/lib/streams"
)

// node is what the fake kubelet runs: the command's name says what it does.
type node struct{ ended chan error }

func (n node) ExecInContainer(
	ctx context.Context, _, _, _ string, cmd []string, in io.Reader, out, errw io.WriteCloser, tty bool,
	sizes <-chan kubeletexec.TerminalSize, _ time.Duration,
) error {
	switch cmd[0] {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "both":
		_, err := io.WriteString(out, "to out")
		_, err2 := io.WriteString(errw, "to err")
		return errors.Join(err, err2)
	case "exit":
		return &utilexec.CodeExitError{Err: errors.New("exited"), Code: 7}
	case "size":
		s := <-sizes
		_, err := fmt.Fprintf(out, "%dx%d tty=%v", s.Width, s.Height, tty)
		return err
	case "hang":
		_, err := io.Copy(io.Discard, in)
		n.ended <- err
		return nil
	case "much":
		for range 100 {
			if _, err := out.Write(bytes.Repeat([]byte("x"), 100_000)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("no such command %q", cmd)
}

// PortForward writes the port and echoes its input.
func (n node) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	if port != 80 {
		return fmt.Errorf("connection refused on port %d", port)
	}
	if _, err := fmt.Fprintf(stream, "%d:", port); err != nil {
		return err
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(stream, b); err != nil {
		return err
	}
	_, err := stream.Write(b)
	return err
}

// serve runs a fake kubelet and, in front of it, a server that hands everything to streams.
func serve(t *testing.T) (string, node) {
	t.Helper()
	n := node{ended: make(chan error, 1)}
	kubelet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const idle, create = time.Minute, 30 * time.Second
		switch r.URL.Path {
		case "/exec":
			opts, err := kubeletexec.NewOptions(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			kubeletexec.ServeExec(w, r, n, "", "", "", r.URL.Query()["command"], opts, idle, create,
				kubeletexec.SupportedStreamingProtocols)
		case "/forward":
			opts, err := kubeletforward.NewV4Options(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			kubeletforward.ServePortForward(w, r, n, "", "", opts, idle, create, kubeletforward.SupportedProtocols)
		case "/log":
			_, _ = io.WriteString(w, "one\ntwo\n")
		case "/hostile":
			hostile(w, r)
		default:
			http.Error(w, "container not found", http.StatusNotFound)
		}
	}))
	t.Cleanup(kubelet.Close)
	via := &http.Transport{}
	t.Cleanup(via.CloseIdleConnections)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, err := url.Parse(kubelet.URL + r.URL.RequestURI())
		if err != nil {
			t.Error(err)
			return
		}
		values := r.URL.Query()
		switch {
		case r.URL.Path == "/log":
			log(t, w, r, target, via)
		case streams.IsTunnel(r):
			if err := streams.Tunnel(w, r, target, via); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		case streams.IsRemote(r):
			streams.Remote(w, r, target, via, streams.Options{
				Stdin:  values.Has("input"),
				Stdout: values.Has("output"),
				Stderr: values.Has("error"),
				TTY:    values.Has("tty"),
			})
		default:
			http.Error(w, "not a websocket of ours", http.StatusTeapot)
		}
	}))
	t.Cleanup(front.Close)
	return front.URL, n
}

func log(t *testing.T, w http.ResponseWriter, r *http.Request, target *url.URL, via *http.Transport) {
	protocol, err := streams.LogProtocol(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return
	}
	streams.Log(w, r, protocol, resp.Body)
}

type once struct {
	sizes chan remotecommand.TerminalSize
}

func (o once) Next() *remotecommand.TerminalSize {
	s, ok := <-o.sizes
	if !ok {
		return nil
	}
	return &s
}

func execute(t *testing.T, base, query string, o remotecommand.StreamOptions) error {
	t.Helper()
	e, err := remotecommand.NewWebSocketExecutor(&rest.Config{Host: base}, http.MethodGet, base+query)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return e.StreamWithContext(ctx, o)
}

func TestStdinEndsAndOutputComesBack(t *testing.T) {
	base, _ := serve(t)
	var out bytes.Buffer
	in := strings.Repeat("hello, world\n", 50_000)
	err := execute(t, base, "/exec?command=cat&input=1&output=1", remotecommand.StreamOptions{
		Stdin:  strings.NewReader(in),
		Stdout: &out,
	})
	if err != nil || out.String() != in {
		t.Errorf("cat: %v, %d bytes; want none, the same %d bytes", err, out.Len(), len(in))
	}
}

func TestStreamsStayApart(t *testing.T) {
	base, _ := serve(t)
	var out, errw bytes.Buffer
	err := execute(t, base, "/exec?command=both&output=1&error=1", remotecommand.StreamOptions{
		Stdout: &out,
		Stderr: &errw,
	})
	if err != nil || out.String() != "to out" || errw.String() != "to err" {
		t.Errorf("both: %v, %q, %q", err, out.String(), errw.String())
	}
}

func TestMuchOutputArrivesWhole(t *testing.T) {
	base, _ := serve(t)
	var out bytes.Buffer
	// Standard input is never read: what was sent of it must not cost any output.
	err := execute(t, base, "/exec?command=much&output=1&input=1", remotecommand.StreamOptions{
		Stdin:  strings.NewReader("unread"),
		Stdout: &out,
	})
	if err != nil || out.Len() != 10_000_000 {
		t.Errorf("much: %v, %d bytes; want 10,000,000", err, out.Len())
	}
}

func TestExitCode(t *testing.T) {
	base, _ := serve(t)
	var code clientexec.CodeExitError
	err := execute(t, base, "/exec?command=exit&output=1", remotecommand.StreamOptions{Stdout: io.Discard})
	if !errors.As(err, &code) || code.ExitStatus() != 7 {
		t.Errorf("exit: %v; want exit code 7", err)
	}
}

func TestTerminalSize(t *testing.T) {
	base, _ := serve(t)
	var out bytes.Buffer
	q := once{make(chan remotecommand.TerminalSize, 1)}
	q.sizes <- remotecommand.TerminalSize{Width: 132, Height: 43}
	defer close(q.sizes)
	err := execute(t, base, "/exec?command=size&output=1&tty=1", remotecommand.StreamOptions{
		Stdout:            &out,
		Tty:               true,
		TerminalSizeQueue: q,
	})
	if err != nil || out.String() != "132x43 tty=true" {
		t.Errorf("size: %v, %q; want 132x43 tty=true", err, out.String())
	}
}

func TestRefusalOfTheKubeletIsTold(t *testing.T) {
	base, _ := serve(t)
	err := execute(t, base, "/nowhere?output=1", remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "container not found") {
		t.Errorf("error %v; want the kubelet's sentence", err)
	}
	err = execute(t, base, "/exec?command=none&output=1", remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "no such command") {
		t.Errorf("error %v; want the runtime's sentence", err)
	}
}

func TestClientThatLeavesEndsTheStreams(t *testing.T) {
	base, node := serve(t)
	d := websocket.Dialer{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, resp, err := d.DialContext(t.Context(),
		strings.Replace(base, "http", "ws", 1)+"/exec?command=hang&input=1&output=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if _, m, err := conn.ReadMessage(); err != nil || !bytes.Equal(m, []byte{1}) {
		t.Fatalf("first message %v, %v; want an empty one on channel 1", m, err)
	}
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte{0, 'a'}); err != nil {
		t.Fatal(err)
	}
	_ = conn.NetConn().Close() // without a word
	select {
	case <-node.ended:
	case <-time.After(time.Minute):
		t.Error("the command's input did not end")
	}
}

func TestGarbageDoesNoHarm(t *testing.T) {
	base, _ := serve(t)
	d := websocket.Dialer{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, resp, err := d.DialContext(t.Context(),
		strings.Replace(base, "http", "ws", 1)+"/exec?command=cat&input=1&output=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	defer func() { _ = conn.Close() }()
	for _, m := range [][]byte{
		{},
		{255},
		{255, 200},
		{77, 1, 2},
		{4, '{'},
		{4},
		{3, 'x'},
		{1, 'x'},
		{0, 'o', 'k'},
		{255, 0},
	} {
		if err := conn.WriteMessage(websocket.BinaryMessage, m); err != nil {
			t.Fatal(err)
		}
	}
	var out, status []byte
	for {
		_, m, err := conn.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Errorf("the websocket ended with %v; want a normal closure", err)
			}
			break
		}
		switch m[0] {
		case 1:
			out = append(out, m[1:]...)
		case 3:
			status = append(status, m[1:]...)
		}
	}
	if string(out) != "ok" || !strings.Contains(string(status), `"status":"Success"`) {
		t.Errorf("out %q, status %s; want ok, Success", out, status)
	}
}

func TestPortForwardInAWebSocket(t *testing.T) {
	base, _ := serve(t)
	u, err := url.Parse(base + "/forward")
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{Host: base})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	ready := make(chan struct{})
	ended := make(chan error, 1)
	portForwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop,
		ready,
		io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- portForwarder.ForwardPorts() }() // ends with stop
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	ports, err := portForwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // connections share the websocket
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Error(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != "80:hello" {
			t.Errorf("%q, %v; want 80:hello", got, err)
		}
		_ = conn.Close()
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Errorf("ForwardPorts = %v after stop; want nil", err)
	}
}

func TestPortForwardRefusedByTheKubelet(t *testing.T) {
	base, _ := serve(t)
	d := websocket.Dialer{Subprotocols: []string{"SPDY/3.1+portforward.k8s.io"}}
	_, resp, err := d.DialContext(t.Context(), strings.Replace(base, "http", "ws", 1)+"/nowhere", nil)
	if err == nil || resp == nil {
		t.Fatalf("dial: %v; want a refusal", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusInternalServerError ||
		!strings.Contains(string(b), "container not found") {
		t.Errorf("%d %s; want 500 with the kubelet's sentence", resp.StatusCode, b)
	}
}

func TestLogOverWebSocket(t *testing.T) {
	base, _ := serve(t)
	for _, protocol := range []string{"", "binary.k8s.io", "base64.binary.k8s.io"} {
		d := websocket.Dialer{}
		if protocol != "" {
			d.Subprotocols = []string{protocol}
		}
		conn, resp, err := d.DialContext(t.Context(), strings.Replace(base, "http", "ws", 1)+"/log", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		var got []byte
		for {
			_, m, err := conn.ReadMessage()
			if err != nil {
				break
			}
			if strings.HasPrefix(protocol, "base64") {
				if m, err = base64.StdEncoding.DecodeString(string(m)); err != nil {
					t.Fatal(err)
				}
			}
			got = append(got, m...)
		}
		_ = conn.Close()
		if string(got) != "one\ntwo\n" || conn.Subprotocol() != protocol {
			t.Errorf("%q: %q by %q; want both lines by the protocol asked for", protocol, got, conn.Subprotocol())
		}
	}
	d := websocket.Dialer{Subprotocols: []string{"telnet"}}
	_, resp, err := d.DialContext(t.Context(), strings.Replace(base, "http", "ws", 1)+"/log", nil)
	if err == nil || resp == nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("unknown protocol: %v; want 400", err)
	}
	if resp != nil {
		_ = resp.Body.Close()
	}
}

// hostile answers as no kubelet does, without end.
func hostile(w http.ResponseWriter, r *http.Request) {
	endless := bytes.Repeat([]byte("no\n"), 10_000)
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	switch how := r.URL.Query().Get("how"); how {
	case "body":
		_, err = io.WriteString(conn, "HTTP/1.1 500 Bad\r\n\r\n")
	case "headers":
		_, err = io.WriteString(conn, "HTTP/1.1 500 Bad\r\n")
		endless = bytes.Repeat([]byte("X-No: "+strings.Repeat("x", 1000)+"\r\n"), 100)
	default:
		const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n" +
			"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
		if _, err := io.WriteString(conn, upgraded); err != nil {
			return
		}
		endless = hostileFrames(conn, how)
	}
	for err == nil {
		_, err = conn.Write(endless)
	}
}

// hostileFrames accepts the client's streams and returns what is sent afterwards.
func hostileFrames(conn net.Conn, how string) []byte {
	var out bytes.Buffer
	framer, err := spdy.NewFramer(&out, conn)
	if err != nil {
		return nil
	}
	for range 2 { // error and stdout
		frame, err := framer.ReadFrame()
		syn, ok := frame.(*spdy.SynStreamFrame)
		if err != nil || !ok {
			return nil
		}
		_ = framer.WriteFrame(&spdy.SynReplyFrame{StreamId: syn.StreamId, Headers: http.Header{}}) // to memory
		_, _ = io.Copy(conn, &out)                                                                 // the test sees it
	}
	switch how {
	case "streams":
		_ = framer.WriteFrame(&spdy.SynStreamFrame{StreamId: 2, Headers: http.Header{"A": {"b"}}}) // to memory
	case "errors":
		_ = framer.WriteFrame(&spdy.DataFrame{StreamId: 1, Data: bytes.Repeat([]byte("x"), 30_000)})
	}
	return out.Bytes()
}

// TestHostileKubelet: what a node sends without end ends the stream, and is not kept.
func TestHostileKubelet(t *testing.T) {
	front, _ := serve(t)
	for how, want := range map[string]string{
		"body":    "unable to upgrade connection: no",
		"headers": "header is too large",
		"errors":  "error is too large",
		"streams": "", // as if the connection had ended
	} {
		var out bytes.Buffer
		err := execute(t, front, "/hostile?output=1&how="+how, remotecommand.StreamOptions{Stdout: &out})
		text := fmt.Sprint(err)
		if !strings.Contains(text, want) || len(text) > 10_000 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %d bytes of error, %.200s", how, len(text), text)
		}
	}
}

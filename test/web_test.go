// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var localPort = regexp.MustCompile(`127\.0\.0\.1:([0-9]+)`)

// forwarded FILE PATH: GETs PATH from the local port that port-forward wrote to FILE; its body is the standard output.
func forwarded(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: forwarded FILE PATH")
	}
	m := localPort.FindStringSubmatch(ts.ReadFile(args[0]))
	if m == nil {
		ts.Fatalf("no port in %q", ts.ReadFile(args[0]))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m[0]+args[1], http.NoBody)
	ts.Check(err)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	ts.Check(err)
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(ts.Stdout(), resp.Body)
	ts.Check(err)
}

// wsopen PROTOCOL PATH [USER]: opens a websocket as a browser does ("" names no protocol), as USER if given (token:FILE
// takes a token from a file, in the way of browsers), and writes what comes, each channel on a line of its own, to the
// standard output: "1: text". Negated, the server must refuse it: its answer is the standard output.
func wsopen(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 && len(args) != 3 {
		ts.Fatalf("usage: wsopen PROTOCOL PATH [USER]")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(ts.Getenv("KEELSON_DATA_DIR"), "kubeconfig"))
	ts.Check(err)
	tlsConfig, err := rest.TLSConfigFor(cfg)
	ts.Check(err)
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig, HandshakeTimeout: patience}
	if args[0] != "" {
		dialer.Subprotocols = []string{args[0]}
	}
	header := http.Header{"Origin": {"https://dashboard.example"}}
	if len(args) == 3 {
		header.Set("Impersonate-User", args[2])
	}
	if name, ok := strings.CutPrefix(header.Get("Impersonate-User"), "token:"); ok { // as a page in a browser would
		header.Del("Impersonate-User")
		token := strings.TrimSpace(ts.ReadFile(name))
		dialer.Subprotocols = append(dialer.Subprotocols,
			"base64url.bearer.authorization.k8s.io."+base64.RawURLEncoding.EncodeToString([]byte(token)))
		tlsConfig.Certificates = nil
		tlsConfig.GetClientCertificate = nil
	}
	conn, resp, err := dialer.Dial(strings.Replace(cfg.Host, "https:", "wss:", 1)+args[1], header)
	if resp != nil {
		defer func() { _ = resp.Body.Close() }()
	}
	if neg {
		if err == nil || resp == nil {
			ts.Fatalf("wsopen %q: %v; want a refusal", args, err)
		}
		_, err := io.Copy(ts.Stdout(), resp.Body)
		ts.Check(err)
		return
	}
	ts.Check(err)
	defer func() { _ = conn.Close() }()
	ts.Check(conn.SetReadDeadline(time.Now().Add(patience)))
	channels := map[byte][]byte{}
	for {
		kind, m, err := conn.ReadMessage()
		if err != nil {
			break // the server closes it when the command has ended
		}
		var channel byte
		if strings.Contains(args[0], "channel") && len(m) > 0 {
			channel = m[0]
			m = m[1:]
		}
		if kind == websocket.TextMessage {
			channel = max(channel, '0') - '0'
			m, err = base64.StdEncoding.DecodeString(string(m))
			ts.Check(err)
		}
		channels[channel] = append(channels[channel], m...)
	}
	for i := range byte(5) {
		if text := channels[i]; len(text) > 0 {
			_, err := fmt.Fprintf(ts.Stdout(), "%d: %s\n", i, strings.TrimSpace(string(text)))
			ts.Check(err)
		}
	}
}

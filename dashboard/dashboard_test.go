// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
)

// lockedBuffer is written by handlers and read by tests.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// page is a dashboard that listens, in front of an API server of the test's.
type page struct {
	*testing.T
	dashboard *Dashboard
	listener  net.Listener
	host      string
	out       *lockedBuffer
	key       string
}

func serve(t *testing.T, readOnly bool, server http.Handler) *page {
	t.Helper()
	api := httptest.NewTLSServer(server)
	t.Cleanup(api.Close)
	p := &page{T: t, out: &lockedBuffer{}}
	var err error
	p.dashboard, err = New(Config{
		Rest: &rest.Config{
			Host:            api.URL,
			BearerToken:     "of-the-viewer",
			TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		},
		Context:  "here",
		ReadOnly: readOnly,
		Out:      p.out,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.listener, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.host = p.listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.dashboard.Run(ctx, p.listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	code := codeOf(p.dashboard.Link(p.listener))
	answer := p.do(p.request(http.MethodPost, "/dashboard/v1/enter", `{"code": "`+code+`"}`))
	var got struct{ Key string }
	if err := json.Unmarshal([]byte(answer.body), &got); err != nil || got.Key == "" {
		t.Fatalf("enter: got %d %s", answer.code, answer.body)
	}
	p.key = got.Key
	return p
}

func codeOf(link string) string { return link[strings.LastIndex(link, "/")+1:] }

// request is one that the page itself would send, with its key.
func (p *page) request(method, path, body string) *http.Request {
	r, err := http.NewRequest(method, "http://"+p.host+path, strings.NewReader(body))
	if err != nil {
		p.Fatal(err)
	}
	r.Header.Set("Origin", "http://"+p.host)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set(keyHeader, p.key)
	return r
}

type answered struct {
	code   int
	header http.Header
	body   string
}

func (p *page) do(r *http.Request) answered {
	p.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		p.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header, string(body)}
}

// socket opens a websocket as the page does.
func (p *page) socket(path string, protocols ...string) *websocket.Conn {
	p.Helper()
	dialer := websocket.Dialer{Subprotocols: append(protocols, keyProtocol+p.key)}
	conn, resp, err := dialer.Dial("ws://"+p.host+path, http.Header{"Origin": {"http://" + p.host}})
	if err != nil {
		p.Fatalf("open %s: %v %v", path, err, resp)
	}
	p.Cleanup(func() { conn.Close() })
	return conn
}

func echo(w http.ResponseWriter, r *http.Request) {
	_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "path": r.URL.EscapedPath(), "query": r.URL.RawQuery})
}

// TestLinkOnce: a link lets in once and for five minutes; what is wrong with it is said, and a new one is printed.
func TestLinkOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor()
		if _, _, err := d.enter(""); !errors.Is(err, errUnknown) {
			t.Errorf("before the first link: got %v", err)
		}
		first := d.open()
		key, _, err := d.enter(first)
		if err != nil || !d.knows(key) || d.knows(first) || d.knows("") {
			t.Fatalf("got key %q, %v", key, err)
		}
		if again, renew, err := d.enter(first); !errors.Is(err, errUsed) || !renew || again != "" {
			t.Errorf("used: got %q, renew %v, %v", again, renew, err)
		}
		second := d.open()
		if _, renew, err := d.enter(first); !errors.Is(err, errUsed) || renew {
			t.Errorf("used, while a new one is valid: renew %v, %v; want no further link", renew, err)
		}
		time.Sleep(linkTime)
		if _, renew, err := d.enter(second); !errors.Is(err, errExpired) || !renew {
			t.Errorf("expired: renew %v, %v", renew, err)
		}
		if _, _, err := d.enter("guess"); !errors.Is(err, errUnknown) {
			t.Errorf("guessed: got %v", err)
		}
		third := d.open()
		time.Sleep(linkTime - 1)
		if other, _, err := d.enter(third); err != nil || !d.knows(other) || !d.knows(key) {
			t.Errorf("just in time: got %v", err)
		}
	})
}

// TestUsedLinkIsReplaced: the terminal shows a new link when an old one is opened, and that one lets in.
func TestUsedLinkIsReplaced(t *testing.T) {
	p := serve(t, false, http.NotFoundHandler())
	link := p.dashboard.Link(p.listener)
	enter := func(code string) answered {
		r := p.request(http.MethodPost, "/dashboard/v1/enter", `{"code": "`+code+`"}`)
		r.Header.Del(keyHeader)
		return p.do(r)
	}
	if got := enter(codeOf(link)); got.code != http.StatusOK {
		t.Fatalf("got %v", got)
	}
	got := enter(codeOf(link))
	fresh := regexp.MustCompile(`http://\S+`).FindString(p.out.String())
	if got.code != http.StatusGone || !strings.Contains(got.body, errUsed.Error()) || fresh == "" {
		t.Fatalf("used: got %v, printed %q", got, p.out)
	}
	if got := enter("guess"); got.code != http.StatusForbidden {
		t.Errorf("guessed: got %v", got)
	}
	if got := enter(codeOf(fresh)); got.code != http.StatusOK {
		t.Errorf("the new link: got %v", got)
	}
}

// TestGuard: what foreign pages can send is refused, whatever its path, and each answer has what keeps browsers from
// making more of it.
func TestGuard(t *testing.T) {
	p := serve(t, false, http.HandlerFunc(echo))
	elsewhere := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	port := p.host[strings.LastIndex(p.host, ":"):]
	for name, tt := range map[string]struct {
		change func(*http.Request)
		paths  []string
		code   int
	}{
		"as it is":              {func(*http.Request) {}, []string{"/", "/app.js", "/api", "/dashboard/v1/session"}, 200},
		"localhost":             {func(r *http.Request) { r.Host = "localhost" + port; r.Header.Del("Origin") }, []string{"/", "/api"}, 200},
		"no browser":            {func(r *http.Request) { r.Header.Del("Origin"); r.Header.Del("Sec-Fetch-Site") }, []string{"/api"}, 200},
		"rebound name":          {func(r *http.Request) { r.Host = "evil.example" + port }, []string{"/", "/api", "/app.js"}, 421},
		"other port":            {func(r *http.Request) { r.Host = "127.0.0.1:1" }, []string{"/", "/api"}, 421},
		"name without a port":   {func(r *http.Request) { r.Host = "127.0.0.1" }, []string{"/"}, 421},
		"foreign origin":        {elsewhere("Origin", "https://evil.example"), []string{"/", "/api", "/dashboard/v1/session"}, 403},
		"a port-forwarded page": {elsewhere("Origin", "http://127.0.0.1:8080"), []string{"/api", "/dashboard/v1/session"}, 403},
		"origin null":           {elsewhere("Origin", "null"), []string{"/api"}, 403},
		"a second origin":       {func(r *http.Request) { r.Header.Add("Origin", "http://evil.example") }, []string{"/api"}, 403},
		"another site":          {elsewhere("Sec-Fetch-Site", "cross-site"), []string{"/", "/app.js", "/api"}, 403},
		"another port's site":   {elsewhere("Sec-Fetch-Site", "same-site"), []string{"/app.js", "/api"}, 403},
		"a link from elsewhere": {func(r *http.Request) {
			r.Header.Del("Origin")
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
		}, []string{"/"}, 200},
		"a link into the API": {func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
		}, []string{"/api/v1/pods", "/app.js"}, 403},
		"no key":        {func(r *http.Request) { r.Header.Del(keyHeader) }, []string{"/api", "/version", "/dashboard/v1/session", "/keelson/v1/ask/why/pod/a"}, 401},
		"a wrong key":   {elsewhere(keyHeader, "x"), []string{"/api", "/dashboard/v1/session", "/dashboard/v1/streams"}, 401},
		"key as cookie": {func(r *http.Request) { r.Header.Set("Cookie", "key="+p.key); r.Header.Del(keyHeader) }, []string{"/api"}, 401},
		"key as protocol without a websocket": {func(r *http.Request) {
			r.Header.Set("Sec-WebSocket-Protocol", keyProtocol+p.key)
			r.Header.Del(keyHeader)
		}, []string{"/api"}, 401},
	} {
		for _, path := range tt.paths {
			r := p.request(http.MethodGet, path, "")
			tt.change(r)
			got := p.do(r)
			if got.code != tt.code {
				t.Errorf("%s, %s: got %d %s, want %d", name, path, got.code, got.body, tt.code)
			}
			for header, want := range map[string]string{
				"X-Content-Type-Options":  "nosniff",
				"X-Frame-Options":         "DENY",
				"Referrer-Policy":         "no-referrer",
				"Content-Security-Policy": "frame-ancestors 'none'",
				"Cache-Control":           "no-store",
			} {
				if !strings.Contains(got.header.Get(header), want) {
					t.Errorf("%s, %s: %s is %q", name, path, header, got.header.Get(header))
				}
			}
			policy := got.header.Get("Content-Security-Policy")
			if strings.Contains(policy, "unsafe") || !strings.Contains(policy, "default-src 'none'") {
				t.Errorf("%s, %s: policy %q", name, path, policy)
			}
			if got.header.Get("Set-Cookie")+got.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s, %s: got %v", name, path, got.header)
			}
		}
	}
}

// TestPaths: only paths of the API are passed on, nothing of pods and services, and unchanged.
func TestPaths(t *testing.T) {
	var mu sync.Mutex
	seen := ""
	p := serve(t, false, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = r.RequestURI
	}))
	for _, path := range []string{
		"/version",
		"/api",
		"/api/v1",
		"/apis",
		"/apis/apps/v1/deployments?limit=3&continue=a%2Bb",
		"/api/v1/namespaces/default/pods/proxy",
		"/api/v1/namespaces/proxy",
		"/api/v1/namespaces/proxy/pods",
		"/api/v1/namespaces/default/status",
		"/api/v1/namespaces/default/pods/a/log?follow=true",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
		"/apis/apps/v1/namespaces/default/deployments/a/scale",
		"/apis/x.example/v1/namespaces/default/proxies/a",
		"/openapi/v3",
		"/keelson/v1/ask/why/pod/a?namespace=b",
		"/keelson/v1/timeline/a/b",
	} {
		got := p.do(p.request(http.MethodGet, path, ""))
		mu.Lock()
		if got.code != http.StatusOK || seen != path {
			t.Errorf("%s: got %d %s, the API server saw %s", path, got.code, got.body, seen)
		}
		seen = ""
		mu.Unlock()
	}
	for _, path := range []string{
		"/healthz",
		"/metrics",
		"/logs",
		"/dashboard/v1/other",
		"/api/v1/namespaces/default/pods/a/proxy",
		"/api/v1/namespaces/default/pods/a/proxy/",
		"/api/v1/namespaces/default/pods/a/proxy/index.html",
		"/api/v1/namespaces/default/services/https:a:1/proxy/x",
		"/api/v1/nodes/a/proxy/stats",
		"/api/v1/nodes/a/%70roxy/stats",
		"/api/v1/namespaces/default/pods/a%2Fproxy",
		"/api/v1/namespaces/default/pods/a%2fproxy/x",
		"/api/v1/namespaces/default/pods/x/../a/proxy",
		"/api/v1/namespaces/default/pods/%2e%2e/services/a",
		"/api/v1//namespaces/default/pods/a",
		"/api/v1/namespaces/default/pods/",
		"/api/v1/namespaces/default/pods/a%5cproxy",
		"/api/v1/namespaces/default/pods/a%25b",
		"/api/v1/namespaces/default/pods/a%00",
		"/api/v1/namespaces/default/pods/a/portforward",
		"/api/v1/namespaces/default/pods/a/exec",
		"/api/v1/namespaces/default/pods/a/log/b",
		"/api/v1/proxy/namespaces/default/pods/a",
		"/api/v1/watch/pods",
		"/apis/x.example/v1/namespaces/default/things/a/proxy",
		"/keelson/v1/backup",
		"/keelson/v1/certificates",
		"/keelson/v1",
	} {
		got := p.do(p.request(http.MethodGet, path, ""))
		mu.Lock()
		if got.code < http.StatusBadRequest || seen != "" {
			t.Errorf("%s: got %d %s, the API server saw %q", path, got.code, got.body, seen)
		}
		mu.Unlock()
	}
}

// TestHostNames: browsers leave the port 80 out of Host and Origin.
func TestHostNames(t *testing.T) {
	for host, want := range map[string][]string{
		"127.0.0.1:8001": {"127.0.0.1:8001", "localhost:8001"},
		"127.0.0.1:80":   {"127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"},
		"10.0.0.1:8001":  {"10.0.0.1:8001"},
	} {
		if got := hostNames(host); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}

// TestOnlyDataPasses: the API server gets the viewer's credentials and nothing of the browser's; the page gets data.
func TestOnlyDataPasses(t *testing.T) {
	var mu sync.Mutex
	var got http.Header
	p := serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = r.Header
		for name, value := range map[string]string{
			"Content-Type":                "text/html",
			"Set-Cookie":                  "a=b",
			"Location":                    "https://evil.example",
			"Refresh":                     "0; url=https://evil.example",
			"Link":                        "<https://evil.example>; rel=preload",
			"Access-Control-Allow-Origin": "*",
			"Content-Security-Policy":     "default-src *",
			"Warning":                     `299 - "old"`,
		} {
			w.Header().Set(name, value)
		}
		w.WriteHeader(http.StatusFound)
		_, _ = io.WriteString(w, "<script>alert(1)</script>")
	}))
	r := p.request(http.MethodGet, "/api/v1/pods", "")
	for _, name := range []string{"Cookie", "Authorization", "Impersonate-User", "X-Remote-User", "X-Forwarded-For", "Connection"} {
		r.Header.Set(name, "of-the-browser")
	}
	r.Header.Set("Accept", "application/json;as=Table")
	answer := p.do(r)
	mu.Lock()
	defer mu.Unlock()
	if got.Get("Authorization") != "Bearer of-the-viewer" || got.Get("Accept") != "application/json;as=Table" {
		t.Errorf("the API server got %v", got)
	}
	for name, values := range got {
		if text := strings.Join(values, ","); strings.Contains(text, "of-the-browser") || strings.Contains(text, p.key) {
			t.Errorf("the API server got %s: %s", name, text)
		}
	}
	for _, name := range []string{"Set-Cookie", "Location", "Refresh", "Link", "Access-Control-Allow-Origin"} {
		if answer.header.Get(name) != "" {
			t.Errorf("the page got %s: %s", name, answer.header.Get(name))
		}
	}
	if kind := answer.header.Get("Content-Type"); kind != "text/plain; charset=utf-8" {
		t.Errorf("the page got a document of the kind %s", kind)
	}
	if policy := answer.header.Values("Content-Security-Policy"); len(policy) != 1 || !strings.Contains(policy[0], "sandbox") {
		t.Errorf("policy %q", policy)
	}
	if answer.header.Get("Warning") == "" {
		t.Error("warnings are lost")
	}
}

// TestEarlyHints: an answer before the last one neither reaches the page nor takes headers away.
func TestEarlyHints(t *testing.T) {
	p := serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "<https://evil.example>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		_, _ = io.WriteString(w, "{}")
	}))
	early := 0
	trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		early++
		return nil
	}}
	r := p.request(http.MethodGet, "/api/v1/pods", "")
	answer := p.do(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if early > 0 || answer.code != http.StatusOK || answer.body != "{}" {
		t.Errorf("the page got %d early answers, then %d %s", early, answer.code, answer.body)
	}
	for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options"} {
		if answer.header.Get(name) == "" {
			t.Errorf("%s is lost", name)
		}
	}
}

// TestReadOnly: nothing that would write passes.
func TestReadOnly(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		p := serve(t, readOnly, http.HandlerFunc(echo))
		for request, writes := range map[string]bool{
			"GET /api/v1/pods": false,
			"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews":        false,
			"POST /keelson/v1/ask/whatif":                                        false,
			"POST /api/v1/namespaces/default/pods":                               true,
			"PUT /api/v1/namespaces/default/pods/a":                              true,
			"PATCH /api/v1/nodes/a":                                              true,
			"DELETE /api/v1/nodes/a":                                             true,
			"POST /api/v1/namespaces/default/pods/a/eviction":                    true,
			"POST /apis/authorization.k8s.io/v1/namespaces/a/selfsubjectxreview": true,
		} {
			method, path, _ := strings.Cut(request, " ")
			want := http.StatusOK
			if writes && readOnly {
				want = http.StatusForbidden
			}
			if got := p.do(p.request(method, path, "{}")); got.code != want {
				t.Errorf("read-only %v, %s: got %d %s, want %d", readOnly, request, got.code, got.body, want)
			}
		}
	}
}

// TestBounded: bodies and headers have limits.
func TestBounded(t *testing.T) {
	p := serve(t, false, http.HandlerFunc(echo))
	if got := p.do(p.request(http.MethodPost, "/api/v1/pods", strings.Repeat("x", maxBody))); got.code != http.StatusOK {
		t.Errorf("the largest body: got %d", got.code)
	}
	if got := p.do(p.request(http.MethodPost, "/api/v1/pods", strings.Repeat("x", maxBody+1))); got.code != http.StatusRequestEntityTooLarge {
		t.Errorf("a larger body: got %d", got.code)
	}
	if got := p.do(p.request(http.MethodPost, "/dashboard/v1/enter", strings.Repeat(" ", 1<<20))); got.code != http.StatusBadRequest {
		t.Errorf("a larger code: got %d", got.code)
	}
	r := p.request(http.MethodGet, "/api", "")
	r.Header.Set("X", strings.Repeat("x", 2*maxHeader))
	resp, err := http.DefaultTransport.RoundTrip(r) // an error: the connection was closed while the header was sent
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a larger header: got %s", resp.Status)
		}
	}
}

// piped is a listener with one connection.
type piped struct{ conns chan net.Conn }

func (p piped) Accept() (net.Conn, error) {
	if conn, ok := <-p.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p piped) Close() error { close(p.conns); return nil }

func (p piped) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestSlowBody: a body that does not come holds no connection, with a key or without.
func TestSlowBody(t *testing.T) {
	for _, path := range []string{"/dashboard/v1/enter", "/dashboard/v1/session", "/api", "/x"} {
		synctest.Test(t, func(t *testing.T) {
			d, err := New(Config{Rest: &rest.Config{Host: "https://127.0.0.1:1"}, Out: io.Discard})
			if err != nil {
				t.Fatal(err)
			}
			here, there := net.Pipe()
			listener := piped{make(chan net.Conn, 1)}
			listener.conns <- there
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- d.Run(ctx, listener) }() // ends with ctx
			begin := time.Now()
			go func() { // ends when the request is written
				_, _ = fmt.Fprintf(here, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 9\r\n\r\n{", path)
			}()
			_, _ = io.ReadAll(here) // what the answer is does not matter
			if took := time.Since(begin); took > bodyTime+time.Second {
				t.Errorf("%s: the connection was held for %v", path, took)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSilentServer: the page gets a sentence when no API server answers.
func TestSilentServer(t *testing.T) {
	p := serve(t, false, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	got := p.do(p.request(http.MethodGet, "/api", ""))
	if got.code != http.StatusBadGateway || !strings.Contains(got.body, "the API server does not answer") {
		t.Errorf("got %d %s", got.code, got.body)
	}
}

// TestTerminal: exec is opened with the key among the offered protocols, which the API server does not see.
func TestTerminal(t *testing.T) {
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/api/v1/namespaces/default/pods/a/exec?command=sh" ||
			r.Header.Get("Sec-Websocket-Protocol") != "v5.channel.k8s.io" || r.Header.Get("Authorization") == "" ||
			r.Header.Get("Origin") != "" {
			t.Errorf("the API server got %s %v", r.URL, r.Header)
		}
		conn, err := (&websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		kind, message, err := conn.ReadMessage()
		if err == nil {
			err = conn.WriteMessage(kind, append([]byte("echo "), message...))
		}
		if err != nil {
			t.Error(err)
		}
	})
	p := serve(t, false, server)
	const path = "/api/v1/namespaces/default/pods/a/exec?command=sh"
	conn := p.socket(path, "v5.channel.k8s.io")
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := conn.ReadMessage(); err != nil || string(got) != "echo hello" || conn.Subprotocol() != "v5.channel.k8s.io" {
		t.Errorf("got %q, %v, protocol %q", got, err, conn.Subprotocol())
	}
	readOnly := serve(t, true, server)
	for name, try := range map[string]struct {
		p      *page
		origin string
		key    string
	}{
		"read-only":      {readOnly, "http://" + readOnly.host, readOnly.key},
		"foreign origin": {p, "http://127.0.0.1:8080", p.key},
		"no origin":      {p, "", p.key},
		"no key":         {p, "http://" + p.host, "x"},
	} {
		header := http.Header{}
		if try.origin != "" {
			header.Set("Origin", try.origin)
		}
		dialer := websocket.Dialer{Subprotocols: []string{"v5.channel.k8s.io", keyProtocol + try.key}}
		if conn, _, err := dialer.Dial("ws://"+try.p.host+path, header); err == nil {
			conn.Close()
			t.Errorf("%s: the container was opened", name)
		}
	}
}

// TestStreams: a page has many answers on one socket, each line whole, and ends them.
func TestStreams(t *testing.T) {
	long := strings.Repeat("x", linePart-1) + "é" + strings.Repeat("y", 10)
	stopped := make(chan struct{})
	p := serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/pods":
			_, _ = fmt.Fprintf(w, "one\n%s\n\xff\nlast", long)
		case "/api/v1/nodes":
			_, _ = io.WriteString(w, "begin\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(stopped)
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind": "Status", "message": "you may not"}`)
		}
	}))
	conn := p.socket("/dashboard/v1/streams", streamsProtocol)
	if conn.Subprotocol() != streamsProtocol {
		t.Errorf("got the protocol %q", conn.Subprotocol())
	}
	say := func(text string) {
		t.Helper()
		if err := conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			_, got, err := conn.ReadMessage()
			if err != nil || string(got) != w {
				t.Fatalf("got %.80q, %v, want %.80q", got, err, w)
			}
		}
	}
	say(`{"id": 1, "get": "/api/v1/pods?watch=true"}`)
	expect("1 o200", "1 lone", "1 p"+long[:linePart-1], "1 l"+long[linePart-1:], "1 l\uFFFD", "1 llast", "1 e")
	say(`{"id": 2, "get": "/api/v1/secrets"}`)
	expect("2 o403", "2 eyou may not")
	say(`{"id": 3, "get": "/api/v1/nodes/a/proxy/x"}`)
	expect("3 e" + errTenant.Error())
	say(`{"id": 4, "get": "/api/v1/namespaces/a/pods/b/exec"}`)
	expect("4 e" + errNotOurs.Error())
	say(`{"id": 5, "get": "/api/v1/pods?a=b\r\nX: y"}`)
	expect("5 e" + errPath.Error())
	say(`{"id": 6, "get": "/api/v1/nodes"}`)
	expect("6 o200", "6 lbegin")
	say(`{"id": 6, "stop": true}`)
	expect("6 e")
	<-stopped
	say(`{"id": 7, "get": "` + strings.Repeat("x", maxQuestion) + `"}`)
	if _, _, err := conn.ReadMessage(); err == nil {
		t.Error("a message that is too large was taken")
	}
}

// TestStreamsAreBounded: a page has so many streams at a time and not more, and all of them end with it.
func TestStreamsAreBounded(t *testing.T) {
	open := make(chan int, 2*maxStreams)
	p := serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open <- 1
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		open <- -1
	}))
	conn := p.socket("/dashboard/v1/streams", streamsProtocol)
	for id := range maxStreams + 1 {
		if err := conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"id": %d, "get": "/api/v1/pods"}`, id)); err != nil {
			t.Fatal(err)
		}
	}
	for {
		_, got, err := conn.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if refused := fmt.Sprintf("%d ea page has at most", maxStreams); strings.HasPrefix(string(got), refused) {
			break
		}
		if !strings.Contains(string(got), " o200") {
			t.Fatalf("got %q", got)
		}
	}
	sum := 0
	for range maxStreams {
		sum += <-open
	}
	conn.Close()
	for range maxStreams {
		sum += <-open
	}
	if sum != 0 {
		t.Errorf("%d streams are left", sum)
	}
}

// FuzzPaths: a path that is passed on is read in the same way again, and leads to no pod or service.
func FuzzPaths(f *testing.F) {
	for _, s := range []string{
		"/api/v1/namespaces/a/pods/b/proxy", "/api/v1/nodes/a/%70roxy", "/apis/a/b/c/d/e", "/version", "/a/../b", "/api/v1/pods/a%2fb",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node", "//api", "/keelson/v1/ask/why/pod/é",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		r, err := routeOf(path)
		if err != nil || len(path) > maxPath/3 { // which may be too long when it is escaped
			return
		}
		plain, escaped := r.path()
		again, err := routeOf(escaped)
		if err != nil || again.subresource != r.subresource || again.resource != r.resource {
			t.Fatalf("%q is sent as %q: %v", path, escaped, err)
		}
		if strings.Contains(plain, "//") || strings.Contains(plain+"/", "/../") || strings.Contains(plain+"/", "/./") ||
			strings.ContainsAny(plain, "\\%\x00") {
			t.Fatalf("%q is passed on as %q", path, plain)
		}
		parts := strings.Split(plain, "/")[1:]
		isAPI := parts[0] == "api" || parts[0] == "apis"
		if n := len(parts); isAPI && n > 4 && (parts[n-1] == "proxy" && r.subresource != "" || n > 8) {
			t.Fatalf("%q leads to %q", path, plain)
		}
	})
}

// FuzzLines: what an answer says arrives, line by line, whatever its bytes.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb"))
	f.Add([]byte("é\xc3\n\n\xf0\x9f\x98"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := wholeRunes(b)
		if n < 0 || n > len(b) || len(b)-n > 3 {
			t.Fatalf("%q: cut at %d", b, n)
		}
		if whole := strings.ToValidUTF8(string(b), "?"); whole == string(b) && n != len(b) {
			t.Fatalf("%q is whole, but cut at %d", b, n)
		}
		for cut := range b { // a cut anywhere in valid text loses nothing
			if strings.ToValidUTF8(string(b), "") != string(b) {
				return
			}
			if k := wholeRunes(b[:cut]); strings.ToValidUTF8(string(b[:k]), "") != string(b[:k]) {
				t.Fatalf("%q[:%d] is cut at %d", b, cut, k)
			}
		}
	})
}

// FuzzQuestion: no message of a page ends the program, and none leads outside the API.
func FuzzQuestion(f *testing.F) {
	f.Add("/api/v1/pods?watch=1")
	f.Add("/api/v1/pods?a=b\r\nc: d")
	f.Fuzz(func(t *testing.T, get string) {
		to, query, err := streamOf(get)
		if err != nil {
			return
		}
		u := (&upstream{base: mustURL(t, "https://api.example:6443")}).at(to, query)
		r, err := http.NewRequest(http.MethodGet, u.String(), http.NoBody)
		if err != nil || r.URL.Host != "api.example:6443" || strings.ContainsAny(r.URL.RequestURI(), "\r\n ") || to.opens() {
			t.Fatalf("%q leads to %v, %v", get, u, err)
		}
	})
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

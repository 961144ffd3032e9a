// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/cluster/credentials"
	"keelson/controllers"
	"keelson/pki"
)

// judge is an API server as an agent's server needs it: it knows the token "good" of reader, who may get /metrics.
type judge struct {
	*fake.Clientset
	ca              *pki.Authority
	tokens, reviews atomic.Int64
	down            atomic.Bool
}

func newJudge(t *testing.T) *judge {
	t.Helper()
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	j := &judge{
		ca: ca,
		Clientset: clienttest.New(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: credentials.AuthenticationInfoName},
			Data:       map[string]string{credentials.ClientCAKey: string(ca.CertPEM())},
		}),
	}
	answer := func(f func(runtime.Object)) clienttesting.ReactionFunc {
		return func(a clienttesting.Action) (bool, runtime.Object, error) {
			if j.down.Load() {
				return true, nil, errors.New("connection refused")
			}
			o := a.(clienttesting.CreateAction).GetObject()
			f(o)
			return true, o, nil
		}
	}
	j.PrependReactor("create", "tokenreviews", answer(func(o runtime.Object) {
		j.tokens.Add(1)
		if tr := o.(*authenticationv1.TokenReview); tr.Spec.Token == "good" {
			tr.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true,
				User:          authenticationv1.UserInfo{Username: "reader"},
			}
		}
	}))
	j.PrependReactor("create", "subjectaccessreviews", answer(func(o runtime.Object) {
		j.reviews.Add(1)
		sar := o.(*authorizationv1.SubjectAccessReview)
		if at := sar.Spec.ResourceAttributes; at != nil {
			sar.Status.Allowed = sar.Spec.User == "reader" && at.Verb == "get" && at.Group == "" &&
				at.Resource == "nodes" && at.Subresource == "proxy" && at.Name == "n1"
			return
		}
		n := sar.Spec.NonResourceAttributes
		sar.Status.Allowed = sar.Spec.User == "reader" && n.Verb == "get" && n.Path == "/metrics"
	}))
	return j
}

// serve answers with the handler of an agent until the test ends.
func (j *judge) serve(t *testing.T, o Serving, dog *leaderelection.HealthzAdaptor) *httptest.Server {
	t.Helper()
	s, err := newServer(o, &client.Client{Interface: client.Plain(j.Clientset)}, State{
		Watchdog:   dog,
		Metrics:    controllers.NewMetrics(client.NewClaims()).Collectors(),
		Component:  "kube-scheduler",
		Flags:      func() map[string]string { return map[string]string{"leader-elect": "true"} },
		ConfigName: "componentconfig",
		Config:     Settings{"Parallelism": 16},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(s)
	srv.TLS = s.tls()
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// request sends a request with a certificate, a token, or neither.
func request(t *testing.T, srv *httptest.Server, method, path, token string, cert *tls.Certificate) (int, string) {
	t.Helper()
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} // the certificate was made for this run
	if cert != nil {
		conf.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: conf}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func clientOf(t *testing.T, ca *pki.Authority, s pki.Subject) *tls.Certificate {
	t.Helper()
	pair, err := ca.Client(s.Name, s)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// TestCallersOfTheKubelet: a token whose user has one of the rights, at this node, is let in.
func TestCallersOfTheKubelet(t *testing.T) {
	judge := newJudge(t)
	callers, err := NewDelegatedAuth(&client.Client{Interface: client.Plain(judge.Clientset)}, Serving{},
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		token, node, verb string
		subresources      []string
		code              int
	}{
		{"good", "n1", "get", []string{"pods", "proxy"}, 200},
		{"good", "n1", "get", []string{"metrics"}, 403},
		{"good", "n1", "create", []string{"proxy"}, 403},
		{"good", "n2", "get", []string{"proxy"}, 403},
		{"bad", "n1", "get", []string{"proxy"}, 401},
		{"", "n1", "get", []string{"proxy"}, 401},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+tt.token)
		w := httptest.NewRecorder()
		admitted := callers.AdmitAtNode(w, r, tt.node, tt.verb, tt.subresources)
		if admitted != (tt.code == 200) || w.Code != tt.code {
			t.Errorf("%+v: %d, admitted %v", tt, w.Code, admitted)
		}
	}
	judge.down.Store(true)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods", http.NoBody)
	r.Header.Set("Authorization", "Bearer good")
	w := httptest.NewRecorder()
	if callers.AdmitAtNode(w, r, "n1", "get", []string{"stats"}) || w.Code != http.StatusInternalServerError {
		t.Errorf("without an API server: %d", w.Code)
	}
}

// TestReviewsOfOneCaller: whose reviews take long waits alone.
func TestReviewsOfOneCaller(t *testing.T) {
	callers, err := NewDelegatedAuth(&client.Client{Interface: client.Plain(newJudge(t).Clientset)}, Serving{},
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	begun := make(chan struct{}, 2*maxReviews) // room for all: those that wait may begin while the test ends
	for i := range 2 * maxReviews {
		strangers.Go(func() {
			_, _ = callers.review(ctx, "stranger", callers.tokens, fmt.Append(nil, i), true, func() (reviewed, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return reviewed{}, ctx.Err()
			})
		})
	}
	for range maxReviewsOfOne {
		<-begun
	}
	got, err := callers.review(ctx, "other", callers.tokens, []byte("x"), true, func() (reviewed, error) {
		return reviewed{allowed: true}, nil
	})
	if err != nil || !got.allowed {
		t.Errorf("another caller: %+v, %v", got, err)
	}
	cancel()
	strangers.Wait()
}

func TestAgentsCallers(t *testing.T) {
	judge := newJudge(t)
	other, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	reader := pki.Subject{Name: "reader"}
	admin := pki.Subject{Name: "admin", Groups: []string{"system:masters"}}
	stranger := pki.Subject{Name: "stranger"}
	srv := judge.serve(t, Serving{}, nil)
	for _, c := range []struct {
		name, method, path, token string
		cert                      *tls.Certificate
		code                      int
		says                      string
	}{
		{"health is for all", "GET", "/healthz", "", nil, 200, "ok"},
		{
			"one check is not", "GET", "/livez/ping", "", nil, 403,
			`forbidden: User \"system:anonymous\" cannot get path \"/livez/ping\"`,
		},
		{"metrics are not", "GET", "/metrics", "", nil, 403, `"reason":"Forbidden"`},
		{"a good token", "GET", "/metrics", "good", nil, 200, "cronjob_controller_job_creation_skew_duration_seconds"},
		{"the process itself", "GET", "/metrics", "good", nil, 200, "# HELP go_goroutines"},
		{"another verb", "DELETE", "/metrics", "good", nil, 403, `cannot delete path`},
		{"another path", "GET", "/debug/pprof/", "good", nil, 403, `User \"reader\" cannot get path \"/debug/pprof/\"`},
		{"a wrong token", "GET", "/metrics", "bad", nil, 401, `"message":"Unauthorized"`},
		{"a certificate", "GET", "/metrics", "", clientOf(t, judge.ca, reader), 200, "kubernetes_build_info"},
		{"a certificate without rights", "GET", "/metrics", "", clientOf(t, judge.ca, stranger), 403, `User \"stranger\"`},
		{"an administrator", "GET", "/debug/pprof/", "", clientOf(t, judge.ca, admin), 200, "goroutine"},
		{"another authority's", "GET", "/metrics", "", clientOf(t, other, admin), 401, "Unauthorized"},
		{"the configuration is not for all", "GET", "/configz", "", nil, 403, ""},
		{
			"the configuration", "GET", "/configz", "", clientOf(t, judge.ca, admin), 200,
			`{"componentconfig":{"Parallelism":16}}`,
		},
		{"flags", "GET", "/flagz", "", clientOf(t, judge.ca, admin), 200, "kube-scheduler flagz"},
		{"their values", "GET", "/flagz", "", clientOf(t, judge.ca, admin), 200, "leader-elect: true"},
		{"flags are not for all", "GET", "/flagz", "", nil, 403, ""},
		{
			"the status", "GET", "/statusz", "", clientOf(t, judge.ca, admin), 200,
			"Paths: /flagz /healthz /livez /metrics /readyz /statusz",
		},
		{"what is not there", "GET", "/nothing", "", clientOf(t, judge.ca, admin), 404, ""},
		{"a path that is not tidy", "GET", "//metrics", "", nil, 403, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, said := request(t, srv, c.method, c.path, c.token, c.cert); code != c.code ||
				!strings.Contains(said, c.says) {
				t.Errorf("got %d %.300q, want %d %q", code, said, c.code, c.says)
			}
		})
	}
}

// TestAgentsProfiling: profiles are served unless the flag says otherwise, and who speaks an old TLS only is refused
// where a newer one is asked for.
func TestAgentsProfiling(t *testing.T) {
	j := newJudge(t)
	admin := clientOf(t, j.ca, pki.Subject{Name: "admin", Groups: []string{"system:masters"}})
	srv := j.serve(t, Serving{NoProfiling: true, MinTLS: "VersionTLS13"}, nil)
	if code, _ := request(t, srv, "GET", "/debug/pprof/", "", admin); code != 404 {
		t.Errorf("profiles are switched off, and answered with %d", code)
	}
	// the certificate was made for this run
	old := tls.Dialer{Config: &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}}
	if conn, err := old.DialContext(t.Context(), "tcp", srv.Listener.Addr().String()); err == nil {
		t.Errorf("TLS 1.2 is spoken: %v", conn.Close())
	}
}

// TestAgentsReviewsAreKept: a scraper costs the API server no two questions for each scrape, and what it said before is
// good while it is gone, but no one new gets in.
func TestAgentsReviewsAreKept(t *testing.T) {
	j := newJudge(t)
	srv := j.serve(t, Serving{}, nil)
	for range 5 {
		if code, said := request(t, srv, "GET", "/metrics", "good", nil); code != 200 {
			t.Fatalf("%d %s", code, said)
		}
	}
	if got := [2]int64{j.tokens.Load(), j.reviews.Load()}; got != [2]int64{1, 1} {
		t.Errorf("token and access reviews: %v, want one of each", got)
	}
	j.down.Store(true)
	for _, c := range []struct {
		token, path string
		code        int
	}{{"good", "/metrics", 200}, {"good", "/debug/pprof/", 500}, {"better", "/metrics", 401}, {"", "/healthz", 200}, {
		"", "/metrics", 500,
	}} {
		if code, said := request(t, srv, "GET", c.path, c.token, nil); code != c.code {
			t.Errorf("without the API server, %s with token %q: %d %s, want %d", c.path, c.token, code, said, c.code)
		}
	}
}

func TestAgentsHealth(t *testing.T) {
	j := newJudge(t)
	srv := j.serve(t, Serving{AlwaysAllow: []string{"/healthz", "/livez*"}},
		leaderelection.NewLeaderHealthzAdaptor(watchdogTolerance))
	want := "[+]ping ok\n[+]leaderElection ok\nhealthz check passed\n"
	if code, said := request(t, srv, "GET", "/healthz?verbose", "", nil); code != 200 || said != want {
		t.Errorf("got %d %q, want %q", code, said, want)
	}
	if code, said := request(t, srv, "GET", "/livez/leaderElection", "", nil); code != 200 || said != "ok" {
		t.Errorf("one check: %d %q", code, said)
	}
	if code, _ := request(t, srv, "GET", "/readyz", "", nil); code != 403 {
		t.Errorf("a path that is not open: %d", code)
	}
}

// TestAgentsPort: a port that was asked for is taken or refused with a sentence; the usual one gives way.
func TestAgentsPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	j := newJudge(t)
	serve := func(o Serving) error {
		parts, err := o.Serve(&client.Client{Interface: client.Plain(j.Clientset)}, State{}, slog.New(slog.DiscardHandler))
		if err != nil || len(parts) == 0 {
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		return parts[0].Run(ctx, cancel)
	}
	for _, c := range []struct {
		o    Serving
		want string
	}{
		{Serving{}, ""},
		{Serving{Port: port, FallbackPort: true}, ""},
		{Serving{Port: port}, fmt.Sprintf("port %d on 127.0.0.1 is used by another program", port)},
		{Serving{Port: 70000}, "--secure-port 70000 is not between 0 and 65535"},
		{Serving{Port: 1, CertFile: "x"}, "must be given together"},
		{Serving{Port: 1, AlwaysAllow: []string{"healthz"}}, "--authorization-always-allow-paths"},
		{
			Serving{Port: 1, MinTLS: "VersionTLS11"},
			`--tls-min-version "VersionTLS11" is neither VersionTLS12 nor VersionTLS13`,
		},
		{Serving{Port: 1, AuthnKubeconfig: "/nope"}, "--authentication-kubeconfig: "},
		{Serving{Port: 1, AuthzKubeconfig: "/nope"}, "--authorization-kubeconfig: "},
		{Serving{Port: 1, ClientCA: filepath.Join(t.TempDir(), "none")}, "--client-ca-file: open "},
	} {
		err := serve(c.o)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

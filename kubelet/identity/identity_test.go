// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"

	"keelson/lib/waittest"
	"keelson/pki"
)

// signer is as much of an API server as the Certificates API needs: it signs every request at once, for the
// lifetime it is given.
type signer struct {
	dir  string
	ca   *pki.Authority
	life time.Duration
	url  string

	mu    sync.Mutex
	csrs  map[string]*certv1.CertificateSigningRequest
	asked map[string][]string // by signer: who asked, a token or the serial number of a certificate
	seen  map[string]bool     // serial numbers that callers of /healthz showed
}

func newSigner(t *testing.T, life time.Duration) *signer {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("server", pki.Subject{Name: "server", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{
		dir:   dir,
		ca:    ca,
		life:  life,
		csrs:  map[string]*certv1.CertificateSigningRequest{},
		asked: map[string][]string{},
		seen:  map[string]bool{},
	}
	srv := httptest.NewUnstartedServer(s)
	srv.TLS = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequestClientCert,
		ClientCAs:    ca.Pool(),
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

func (s *signer) config(token string) *rest.Config {
	return &rest.Config{
		Host:            s.url,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.CertPEM()},
		ContentConfig:   rest.ContentConfig{ContentType: "application/json"},
	}
}

func (s *signer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if certs := r.TLS.PeerCertificates; len(certs) > 0 && time.Now().Before(certs[0].NotAfter) {
		who = certs[0].SerialNumber.String()
	}
	const all = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	switch {
	case who == "":
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/healthz":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen[who] = true
	case r.URL.Path == all && r.Method == http.MethodPost:
		s.create(w, r, who)
	case r.URL.Path == all:
		s.find(w, r, strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// find answers a list, or a streaming list, of one request; it is decided already, so that nothing changes afterwards.
func (s *signer) find(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	csr := s.csrs[name]
	s.mu.Unlock()
	if csr == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		answer(w, http.StatusOK, &certv1.CertificateSigningRequestList{
			TypeMeta: metav1.TypeMeta{Kind: "CertificateSigningRequestList", APIVersion: "certificates.k8s.io/v1"},
			Items:    []certv1.CertificateSigningRequest{*csr},
		})
		return
	}
	answer(w, http.StatusOK, map[string]any{"type": "ADDED", "object": csr})
	end := &certv1.CertificateSigningRequest{TypeMeta: csr.TypeMeta}
	end.ResourceVersion = "1"
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": end})
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func (s *signer) create(w http.ResponseWriter, r *http.Request, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var csr certv1.CertificateSigningRequest
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(b, &csr)
	}
	req, perr := pki.ParseRequest(csr.Spec.Request)
	if err != nil || perr != nil {
		http.Error(w, "wrong request", http.StatusBadRequest)
		return
	}
	use := x509.ExtKeyUsageClientAuth
	if csr.Spec.SignerName == certv1.KubeletServingSignerName {
		use = x509.ExtKeyUsageServerAuth
	}
	if csr.Status.Certificate, err = s.ca.Sign(req, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{use},
		s.life); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	csr.Status.Conditions = []certv1.CertificateSigningRequestCondition{
		{Type: certv1.CertificateApproved, Status: "True"},
	}
	csr.ResourceVersion = "1"
	csr.Name = csr.GenerateName + string(rune('a'+len(s.csrs)))
	csr.UID = "u"
	csr.TypeMeta = metav1.TypeMeta{Kind: "CertificateSigningRequest", APIVersion: "certificates.k8s.io/v1"}
	s.csrs[csr.Name] = &csr
	s.asked[csr.Spec.SignerName] = append(s.asked[csr.Spec.SignerName], who)
	answer(w, http.StatusCreated, &csr)
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// start runs an identity until the test ends, and returns it once it has a client certificate.
func start(t *testing.T, cfg Config) *Identity {
	t.Helper()
	id, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- id.Run(ctx, func() { close(ready) }) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("no client certificate after a minute")
	}
	return id
}

func (s *signer) asks(signer string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked[signer])
}

func TestBootstrapAndRenewal(t *testing.T) {
	signer := newSigner(t, 8*time.Second)
	dir := t.TempDir()
	first := 0
	cfg := Config{
		Dir:       dir,
		NodeName:  "n1",
		Addresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		Server:    signer.config(""),
		Bootstrap: signer.config("token"),
		First: func() error {
			first++
			return nil
		},
	}
	id := start(t, cfg)
	if first != 1 {
		t.Errorf("First was called %d times", first)
	}
	client := http.Client{Transport: id.REST().Transport}
	call := func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, signer.url+"/healthz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	waittest.Until(t, "a request with the first certificate and one with its successor", func() bool {
		call()
		signer.mu.Lock()
		defer signer.mu.Unlock()
		return len(signer.seen) >= 2
	})
	asks := signer.asks(certv1.KubeAPIServerClientKubeletSignerName)
	if asks[0] != "token" {
		t.Errorf("the first request came from %q, want the bootstrap token", asks[0])
	}
	if asks[1] == "token" {
		t.Error("the certificate was renewed with the bootstrap token, want with the certificate itself")
	}
}

func TestServing(t *testing.T) {
	signer := newSigner(t, time.Hour)
	id := start(t, Config{
		Dir:       t.TempDir(),
		NodeName:  "n1",
		Addresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		Server:    signer.config(""),
		Bootstrap: signer.config("token"),
	})
	conf := id.ServerTLS()
	waittest.Until(t, "a serving certificate", func() bool {
		_, err := conf.GetCertificate(nil)
		return err == nil
	})
	c, err := conf.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: signer.ca.Pool(), DNSName: "127.0.0.1"}); err != nil {
		t.Error(err)
	}
	if err := c.Leaf.VerifyHostname("n1"); err != nil {
		t.Error(err)
	}
	if c.Leaf.Subject.CommonName != "system:node:n1" {
		t.Errorf("it is for %q", c.Leaf.Subject.CommonName)
	}
	if asks := signer.asks(certv1.KubeletServingSignerName); asks[0] == "token" {
		t.Error("asked for with the bootstrap token, want with the client certificate")
	}
}

// TestAgain: stored certificates are used again, without a bootstrap token; without either the error says what to do.
func TestAgain(t *testing.T) {
	signer := newSigner(t, time.Hour)
	cfg := Config{
		Dir:       t.TempDir(),
		NodeName:  "n1",
		Addresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		Server:    signer.config(""),
	}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "--bootstrap-kubeconfig") {
		t.Errorf("without certificate and token: %v", err)
	}
	t.Run("first", func(t *testing.T) {
		with := cfg
		with.Bootstrap = signer.config("token")
		start(t, with)
	})
	start(t, cfg)
	if asks := signer.asks(certv1.KubeAPIServerClientKubeletSignerName); len(asks) != 1 {
		t.Errorf("requests: %v, want one", asks)
	}
}

// lateStore is about to write when ctx ends, and says whether Run was over before it did.
type lateStore struct {
	certificate.Store
	ctx      context.Context
	began    chan struct{}
	returned chan struct{}
	late     atomic.Bool
}

func (s *lateStore) Update(cert, key []byte) (*tls.Certificate, error) {
	close(s.began)
	<-s.ctx.Done()
	for waits := false; !waits; runtime.Gosched() { // until Run has returned or waits for this
		select {
		case <-s.returned:
			s.late.Store(true)
			waits = true
		default:
			buf := make([]byte, 1<<20)
			waits = strings.Contains(string(buf[:runtime.Stack(buf, true)]), "identity.(*kept).end(")
		}
	}
	return s.Store.Update(cert, key)
}

// TestNothingIsKeptAfterTheEnd: Run ends when its directory has no owner any more.
func TestNothingIsKeptAfterTheEnd(t *testing.T) {
	s := newSigner(t, time.Hour)
	id, err := New(Config{
		Dir:       t.TempDir(),
		NodeName:  "n1",
		Server:    s.config(""),
		Bootstrap: s.config("token"),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	late := &lateStore{
		Store:    id.client.Store,
		ctx:      ctx,
		began:    make(chan struct{}),
		returned: make(chan struct{}),
	}
	id.client.Store = late
	go func() { // ends with ctx
		defer close(late.returned)
		if err := id.Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
	}()
	<-late.began
	cancel()
	<-late.returned
	if late.late.Load() {
		t.Error("a certificate was written after Run had ended")
	}
	if _, err := id.client.Update(nil, nil); !errors.Is(err, errEnded) {
		t.Errorf("Update after the end: %v, want %v", err, errEnded)
	}
}

// TestClockIsSet: a certificate that is due after the clock was set is renewed then, whatever the managers wait for.
func TestClockIsSet(t *testing.T) {
	s := newSigner(t, time.Hour)
	dir := t.TempDir()
	id, err := New(Config{
		Dir:       dir,
		NodeName:  "n1",
		Addresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		Server:    s.config(""),
		Bootstrap: s.config("token"),
	})
	if err != nil {
		t.Fatal(err)
	}
	asleep := make(chan struct{}) // received before the files change, which are read in between
	set := make(chan struct{})
	id.sleepUntil = func(ctx context.Context, _ time.Time) error {
		select {
		case asleep <- struct{}{}:
		case <-ctx.Done():
		}
		select {
		case <-set:
		case <-ctx.Done():
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- id.Run(ctx, func() { close(ready) }) }() // ends with ctx
	<-ready
	waittest.Until(t, "both certificates", func() bool { return id.shown.Load() != nil && id.served.Load() != nil })
	asks := func() [2]int {
		return [2]int{
			len(s.asks(certv1.KubeAPIServerClientKubeletSignerName)), len(s.asks(certv1.KubeletServingSignerName)),
		}
	}
	if got := asks(); got != [2]int{1, 1} {
		t.Fatalf("requests at first: %v", got)
	}
	<-asleep
	set <- struct{}{} // nothing is due
	<-asleep
	for _, name := range []string{"kubelet-client", "kubelet-server"} {
		if err := os.Remove(filepath.Join(dir, name+"-current.pem")); err != nil {
			t.Fatal(err)
		}
	}
	set <- struct{}{}
	waittest.Until(t, "new certificates", func() bool { return asks() == [2]int{2, 2} })
	if by := s.asks(certv1.KubeAPIServerClientKubeletSignerName)[1]; by == "token" {
		t.Error("renewed with the bootstrap token, want with the certificate in use")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPreferredKey: when the CA has another key, both certificates are requested again, by the one in use, and no more
// when they are the new key's.
func TestPreferredKey(t *testing.T) {
	s := newSigner(t, time.Hour)
	id := start(t, Config{
		Dir:       t.TempDir(),
		NodeName:  "n1",
		Addresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		Server:    s.config(""),
		Bootstrap: s.config("token"),
	})
	waittest.Until(t, "both certificates", func() bool { return id.shown.Load() != nil && id.served.Load() != nil })
	asks := func() [2]int {
		return [2]int{
			len(s.asks(certv1.KubeAPIServerClientKubeletSignerName)), len(s.asks(certv1.KubeletServingSignerName)),
		}
	}
	prefer := func(steps ...func(dir, name string) error) {
		t.Helper()
		for _, step := range steps {
			if err := step(s.dir, "ca"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.ca.Refresh(); err != nil {
			t.Fatal(err)
		}
		certs, err := pki.Certificates(s.ca.CertPEM())
		if err != nil {
			t.Fatal(err)
		}
		id.Prefer(certs)
	}
	first := asks() // one of each, or more where a request was repeated on a busy machine
	prefer(pki.Trust)
	if got := asks(); got != first {
		t.Errorf("requests while the old key signs: %v, want %v as earlier", got, first)
	}
	prefer(pki.Use)
	ca, _ := s.ca.Signer()
	waittest.Until(t, "certificates of the new key", func() bool {
		return id.shown.Load().Leaf.CheckSignatureFrom(ca) == nil && id.served.Load().Leaf.CheckSignatureFrom(ca) == nil
	})
	second := asks()
	if second[0] <= first[0] || second[1] <= first[1] {
		t.Errorf("requests after the change: %v, want more of each than %v", second, first)
	}
	prefer()
	if got := asks(); got != second {
		t.Errorf("requests for certificates of the preferred key: %v, want %v as earlier", got, second)
	}
	if by := s.asks(certv1.KubeAPIServerClientKubeletSignerName)[1]; by == "token" {
		t.Error("requested with the bootstrap token, want with the certificate in use")
	}
}

func TestNoTLS(t *testing.T) {
	if _, err := New(Config{
		Dir:      t.TempDir(),
		NodeName: "n1",
		Server: &rest.Config{
			Host: "http://127.0.0.1:1",
		},
	}); err == nil || !strings.Contains(err.Error(), "https") {
		t.Errorf("over plain HTTP: %v", err)
	}
}

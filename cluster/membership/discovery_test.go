// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/pki"
)

const testToken = "abcdef.0123456789abcdef"

func sign(content, secret string) string {
	text := base64.RawURLEncoding.EncodeToString
	head := text([]byte(`{"alg":"HS256","kid":"abcdef"}`))
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(head + "." + text([]byte(content))))
	return head + ".." + text(mac.Sum(nil))
}

// TestDiscover: a machine trusts the server that its token and its hash lead to, and says what is wrong with every
// other.
func TestDiscover(t *testing.T) {
	ca, err := pki.Open("", "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open("", "ca")
	if err != nil {
		t.Fatal(err)
	}
	hash, err := hashesOf(ca.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	type world struct {
		shows    *pki.Authority // who signed the certificate that the server shows
		data     map[string]string
		off      time.Duration
		code     int
		request  JoinRequest
		pretends bool // says something else to who checks its certificate
	}
	for name, c := range map[string]struct {
		change func(*world)
		want   string
	}{
		"right": {func(*world) {}, ""},
		"wrong hash": {
			func(w *world) { w.request.CAHashes = []string{"sha256:" + strings.Repeat("0", 64)} },
			"this is another cluster, or somebody between",
		},
		"wrong secret": {
			func(w *world) { w.request.Token = "abcdef.ffffffffffffffff" }, "the secret of token abcdef is wrong",
		},
		"changed":           {func(w *world) { w.data[infoFile] += "\n" }, "is wrong"},
		"an hour off":       {func(w *world) { w.off = time.Hour }, "apart; set the clock"},
		"no cluster-info":   {func(w *world) { w.code = http.StatusForbidden }, "keelson token create"},
		"server broken":     {func(w *world) { w.code = http.StatusInternalServerError }, "answers 500"},
		"other certificate": {func(w *world) { w.shows = other }, "the server's certificate is not good for"},
		"between":           {func(w *world) { w.pretends = true }, "somebody is between"},
		"no token":          {func(w *world) { w.request.Token = "x" }, "--token is not of the form"},
		"no hash":           {func(w *world) { w.request.CAHashes = nil }, "--ca-hash is missing"},
		"bad hash":          {func(w *world) { w.request.CAHashes = []string{"md5:1"} }, "not of the form sha256:HEX"},
		"plain": {
			func(w *world) { w.request.Server = "http://127.0.0.1:1" }, "not of the form https://HOST:PORT",
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := clientcmdapi.NewConfig()
			file.Clusters[""] = &clientcmdapi.Cluster{Server: "https://x", CertificateAuthorityData: ca.CertPEM()}
			text, err := clientcmd.Write(*file)
			if err != nil {
				t.Fatal(err)
			}
			w := &world{shows: ca, code: http.StatusOK, request: JoinRequest{Token: testToken, CAHashes: hash}}
			w.data = map[string]string{
				infoFile:               string(text),
				signatureOf + "abcdef": sign(string(text), "0123456789abcdef"),
			}
			asked := 0
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				asked++
				rw.Header().Set("Date", time.Now().Add(-w.off).UTC().Format(http.TimeFormat))
				rw.WriteHeader(w.code)
				data := w.data
				if w.pretends && asked > 1 {
					data = map[string]string{infoFile: "else"}
				}
				_ = json.NewEncoder(rw).Encode(corev1.ConfigMap{Data: data})
			}))
			c.change(w)
			pair, err := w.shows.Server("s", pki.Subject{Name: "s", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
			if err != nil {
				t.Fatal(err)
			}
			cert, err := pair.TLS()
			if err != nil {
				t.Fatal(err)
			}
			server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} // a test's
			server.StartTLS()
			defer server.Close()
			if w.request.Server == "" {
				w.request.Server = server.URL
			}
			to, err := w.request.discover(t.Context())
			if c.want == "" {
				if err != nil || to.BearerToken != testToken || string(to.CAData) != string(ca.CertPEM()) {
					t.Errorf("got %v, %v", to, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	q := JoinRequest{Server: "https://127.0.0.1:1", Token: testToken, CAHashes: hash}
	if _, err := q.discover(t.Context()); err == nil || !strings.Contains(err.Error(), "the server is not reachable") {
		t.Errorf("no server: %v", err)
	}
}

// FuzzSignature: whatever a server calls a signature, only the right one is trusted, and nothing panics.
func FuzzSignature(f *testing.F) {
	f.Add("content", sign("content", "0123456789abcdef"))
	f.Add("", "..")
	f.Fuzz(func(t *testing.T, content, signature string) {
		if signedBy(content, signature, "a-secret-of-no-token") && signature != sign(content, "a-secret-of-no-token") &&
			!strings.Contains(signature, "..") {
			t.Errorf("%q is a signature of %q", signature, content)
		}
	})
}

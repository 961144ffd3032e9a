// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

// TestLargeManifests: a manifest that is too large is refused by its announced size, or before more than that was read.
func TestLargeManifests(t *testing.T) {
	for name, announce := range map[string]bool{"announced": true, "endless": false} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if !strings.Contains(r.URL.Path, "/manifests/") {
					next.ServeHTTP(w, r)
					return
				}
				if announce {
					w.Header().Set("Content-Length", fmt.Sprint(20<<20))
				}
				for chunk := bytes.Repeat([]byte(" "), 1<<20); sent.Load() < 1<<30; {
					n, err := w.Write(chunk)
					sent.Add(int64(n))
					if err != nil {
						return
					}
				}
			})
			s := newStore(t)
			_, err := s.Pull(t.Context(), Request{Ref: host + "/big:1"})
			if !errors.Is(err, manifest.ErrInvalid) || !strings.Contains(err.Error(), "4194304") {
				t.Errorf("got %v, want the limit", err)
			}
			if got := sent.Load(); got > 64<<20 {
				t.Errorf("the registry could send %d MiB", got>>20)
			}
		})
	}
}

// TestNamesOfArchives: the names in an archive are kept in memory, so their bytes are limited.
func TestNamesOfArchives(t *testing.T) {
	var entries []imagetest.Entry
	for i := range 40 {
		name := fmt.Sprintf("%d/%s", i, strings.Repeat("n", 900<<10))
		entries = append(entries, imagetest.Header(tar.Header{Typeflag: tar.TypeReg, Name: name, Format: tar.FormatPAX}))
	}
	_, err := newStore(t).Import(t.Context(), bytes.NewReader(imagetest.LayerTar(t, entries...)))
	if !errors.Is(err, manifest.ErrInvalid) || !strings.Contains(err.Error(), "archive has names of more than") {
		t.Errorf("got %.300v", err)
	}
}

// secret is what a service says that only the node can reach.
const secret = "the-password-of-the-node"

// inner is such a service; it counts its requests.
func inner(t *testing.T) (host string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, `{"errors":[{"code":"X","message":%q,"detail":%q}]}`, secret, secret)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), asked
}

// TestRegistriesLeadNowhere: no redirect and no realm leads to this node, to a link-local address or to plain HTTP.
func TestRegistriesLeadNowhere(t *testing.T) {
	victim, asked := inner(t)
	_, port, _ := strings.Cut(victim, ":")
	for name, to := range map[string]string{
		"loopback":        "http://" + victim + "/",
		"loopback by TLS": "https://" + victim + "/",
		"a name":          "https://localhost:" + port + "/",
		"another form":    "https://[::ffff:127.0.0.1]:" + port + "/",
		"unspecified":     "https://0.0.0.0:" + port + "/",
		"metadata":        "http://169.254.169.254/latest/meta-data",
		"metadata, TLS":   "https://169.254.169.254/latest/meta-data",
	} {
		for at, answer := range map[string]http.HandlerFunc{
			"redirect": func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			},
			"realm": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"x\"", to))
				w.WriteHeader(http.StatusUnauthorized)
			},
		} {
			for _, of := range []string{"/v2/", "/manifests/", "/blobs/"} {
				var pushed atomic.Bool
				host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					isPing := r.URL.Path == "/v2/"
					if pushed.Load() && r.Method == http.MethodGet && (isPing == (of == "/v2/")) &&
						strings.Contains(r.URL.Path, of) {
						answer(w, r)
						return
					}
					next.ServeHTTP(w, r)
				})
				imagetest.Push(t, host+"/app:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
				pushed.Store(true)
				_, err := newStore(t).Pull(t.Context(), Request{Ref: host + "/app:1"})
				if err == nil || strings.Contains(err.Error(), secret) {
					t.Errorf("%s to %s at %s: got %v", at, name, of, err)
				}
			}
		}
	}
	if got := asked.Load(); got > 0 {
		t.Errorf("the service on the node was asked %d times", got)
	}
}

// TestErrorsRepeatNoAnswer: no error contains a registry's bodies, headers or redirects, except the status and
// why TLS failed are.
func TestErrorsRepeatNoAnswer(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusTeapot) },
		"an error of the API": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":%q},{"code":%q,"detail":{%q:1}}]}`, secret,
				secret, secret)
		},
		"no manifest": func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "%q", secret) },
		"a number":    func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"layers":"`+secret+`"}`) },
		"a broken address": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://["+secret)
			w.WriteHeader(302)
		},
		"a scheme": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "gopher://"+secret, http.StatusFound)
		},
		"compressed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = fmt.Fprint(w, secret)
		},
		"a platform": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"manifests":[{"platform":{"os":%q,"architecture":%q}}]}`, secret+"\n", secret)
		},
	} {
		host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.Contains(r.URL.Path, "/manifests/") {
				answer(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
		_, err := newStore(t).Pull(t.Context(), Request{Ref: host + "/app:1"})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	defer tls.Close()
	_, err := newStore(t).Pull(t.Context(), Request{Ref: strings.TrimPrefix(tls.URL, "https://") + "/app:1"})
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of an unknown CA: got %v", err)
	}
}

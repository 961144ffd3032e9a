// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// fill repeats an element up to the largest document.
func fill(head, element, tail string) []byte {
	n := (maxDocument - len(head) - len(tail)) / (len(element) + 1)
	return []byte(head + strings.Repeat(element+",", n-1) + element + tail)
}

const anyDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// TestDocumentsStaySmall: a document of the largest size costs little more memory than its bytes, whatever is in it.
func TestDocumentsStaySmall(t *testing.T) {
	manifest := `{"config":{"digest":"` + anyDigest + `"},`
	config := func(raw []byte) error {
		_, err := parseConfig(raw, runtime.GOARCH)
		return err
	}
	document := func(raw []byte) error {
		_, err := parseDocument(raw, "")
		return err
	}
	dockerList := func(raw []byte) error {
		_, err := decodeList[dockerManifest](raw, maxManifests)
		return err
	}
	for name, c := range map[string]struct {
		raw   []byte
		parse func([]byte) error
		ok    bool
	}{
		"layers":              {fill(manifest+`"layers":[`, `{}`, `]}`), document, false},
		"layers, many times":  {fill(manifest+`"x":0,`, `"layers":[{},{},{},{}]`, `}`), document, false},
		"volumes":             {fill(`{"config":{"Volumes":{`, `"/x":{}`, `}}}`), config, false},
		"empty layers":        {fill(manifest+`"x":0,`, `"layers":[]`, `}`), document, false},
		"manifests":           {fill(`{"manifests":[`, `{}`, `]}`), document, false},
		"annotations":         {fill(manifest+`"annotations":{`, `"a":""`, `},"layers":[]}`), document, true},
		"urls of a layer":     {fill(manifest+`"layers":[{"urls":[`, `""`, `]}]}`), document, true},
		"platform's features": {fill(`{"manifests":[{"platform":{"os.features":[`, `""`, `]}}]}`), document, true},
		"unknown":             {fill(manifest+`"x":[`, `{}`, `]}`), document, true},
		"deep": {
			fill(manifest+`"x":`+strings.Repeat("[", 9000), `0`, strings.Repeat("]", 9000)+`}`), document, true,
		},
		"diff ids":          {fill(`{"rootfs":{"diff_ids":[`, `""`, `]}}`), config, false},
		"environment":       {fill(`{"config":{"Env":[`, `""`, `]}}`), config, false},
		"large environment": {fill(`{"config":{"Env":[`, `"`+strings.Repeat("x", 4000)+`"`, `]}}`), config, false},
		"arguments":         {fill(`{"config":{"Cmd":[`, `""`, `]}}`), config, false},
		"long user":         {fill(`{"config":{"User":"`, strings.Repeat("x", 4000), `"}}`), config, false},
		"history":           {fill(`{"history":[`, `{}`, `]}`), config, true},
		"labels":            {fill(`{"config":{"Labels":{`, `"a":""`, `}}}`), config, true},
		"ports":             {fill(`{"config":{"ExposedPorts":{`, `"1":{}`, `}}}`), config, true},
		"images of docker":  {fill(`[`, `{}`, `]`), dockerList, false},
		"tags of docker":    {fill(`[{"RepoTags":[`, `""`, `]}]`), dockerList, false},
	} {
		var err error
		used := allocated(func() { err = c.parse(c.raw) })
		if used > 16*maxDocument {
			t.Errorf("%s: %d MiB were allocated for %d", name, used>>20, len(c.raw)>>20)
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v, want it parsed: %v", name, err, c.ok)
		}
	}
}

// TestLargeManifests: a manifest that is too large is refused by its announced size, or before more than that was read.
func TestLargeManifests(t *testing.T) {
	for name, announce := range map[string]bool{"announced": true, "endless": false} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			host := front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
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
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "4194304") {
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
	var entries []entry
	for i := range 40 {
		name := fmt.Sprintf("%d/%s", i, strings.Repeat("n", 900<<10))
		entries = append(entries, hdr(tar.Header{Typeflag: tar.TypeReg, Name: name, Format: tar.FormatPAX}))
	}
	_, err := newStore(t).Import(t.Context(), bytes.NewReader(layerTar(t, entries...)))
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "archive has names of more than") {
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
				host := front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					isPing := r.URL.Path == "/v2/"
					if pushed.Load() && r.Method == http.MethodGet && (isPing == (of == "/v2/")) &&
						strings.Contains(r.URL.Path, of) {
						answer(w, r)
						return
					}
					next.ServeHTTP(w, r)
				})
				push(t, host+"/app:1", newImage(t, layerTar(t, file("a", "1"))))
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
		host := front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
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

// TestPlatformNames: platforms are compared as other runtimes do, and of several variants the best that runs is chosen.
func TestPlatformNames(t *testing.T) {
	const manifest = "application/vnd.oci.image.manifest.v1+json"
	rank := func(arch, os, name, variant string) int {
		p := &platform{OS: os, Architecture: name, Variant: variant}
		return rankPlatform(descriptor{MediaType: manifest, Platform: p}, arch)
	}
	for _, c := range []struct {
		arch, os, name, variant string
		runs                    bool
	}{
		{"amd64", "linux", "amd64", "", true},
		{"amd64", "Linux", "x86_64", "", true},
		{"amd64", "linux", "x86-64", "v1", true},
		{"amd64", "linux", "amd64", "v9", false},
		{"amd64", "linux", "amd64", "unheard-of", false},
		{"amd64", "windows", "amd64", "", false},
		{"amd64", "linux", "ppc64le", "", false},
		{"amd64", "linux", "386", "", true},
		{"amd64", "linux", "i686", "", true},
		{"amd64", "linux", "386", "unheard-of", false},
		{"amd64", "linux", "arm", "", false},
		{"amd64", "freebsd", "386", "", false},
		{"386", "linux", "amd64", "", false},
		{"arm64", "linux", "arm", "v7", true},
		{"arm64", "linux", "armel", "", true},
		{"arm64", "linux", "386", "", false},
		{"s390x", "linux", "", "", false},
		{"arm64", "linux", "aarch64", "", true},
		{"arm64", "linux", "arm64", "v8.2", true},
		{"arm64", "linux", "arm64", "v9", false},
		{"arm", "linux", "armhf", "", true},
		{"arm", "linux", "armel", "", true},
		{"arm", "linux", "arm", "5", true},
		{"arm", "linux", "arm", "v8", false},
	} {
		if got := rank(c.arch, c.os, c.name, c.variant) > 0; got != c.runs {
			t.Errorf("%s/%s/%s on %s: runs %v, want %v", c.os, c.name, c.variant, c.arch, got, c.runs)
		}
	}
	for _, better := range [][2]int{
		{rank("arm", "linux", "arm", "v7"), rank("arm", "linux", "arm", "v6")},
		{rank("arm", "linux", "arm", ""), rank("arm", "linux", "arm", "v6")},
		{rank("arm64", "linux", "arm64", ""), rankPlatform(descriptor{MediaType: manifest}, "arm64")},
		{rank("arm64", "linux", "arm64", ""), rank("arm64", "linux", "arm", "v8")},
		{rank("amd64", "linux", "amd64", ""), rank("amd64", "linux", "386", "")},
	} {
		if better[0] <= better[1] {
			t.Errorf("ranks %v, want the first one higher", better)
		}
	}
}

// TestConfigOfAnotherPlatform: the platform in an index counts, not the one in the config inside.
func TestConfigOfAnotherPlatform(t *testing.T) {
	for _, c := range []struct {
		raw, arch string
		ok        bool
	}{
		{`{"os":"linux","architecture":"amd64"}`, "amd64", true},
		{`{"os":"Linux","architecture":"x86_64"}`, "amd64", true},
		{`{"os":"linux","architecture":"ppc64le"}`, "amd64", false},
		{`{"os":"linux","architecture":"386"}`, "amd64", true},
		{`{"os":"linux","architecture":"ppc64le"}`, "", true},
		{`{"config":{"Volumes":{"/data":{},"/more":{}}}}`, "amd64", true},
		{`{"config":{"Volumes":["/data"]}}`, "amd64", false},
	} {
		conf, err := parseConfig([]byte(c.raw), c.arch)
		if (err == nil) != c.ok {
			t.Errorf("%s for %q: got %v, want it accepted: %v", c.raw, c.arch, err, c.ok)
		}
		if err == nil && strings.Contains(c.raw, "more") && len(conf.kept().Volumes) != 2 {
			t.Errorf("%s: got volumes %v", c.raw, conf.kept().Volumes)
		}
	}
}

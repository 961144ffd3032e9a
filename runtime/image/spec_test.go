// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

// blobs is a registry of documents that no library writes. Its keys are digests and tags.
type blobs map[string]blob

type blob struct {
	mediaType string
	raw       []byte
}

// add adds a blob and returns its descriptor, changed by more.
func (b blobs) add(mediaType string, raw []byte, more ...func(map[string]any)) map[string]any {
	digest := manifest.DigestOf(raw)
	b[digest] = blob{mediaType, raw}
	out := map[string]any{"mediaType": mediaType, "digest": digest, "size": len(raw)}
	for _, change := range more {
		change(out)
	}
	return out
}

func (b blobs) addJSON(mediaType string, doc any, more ...func(map[string]any)) map[string]any {
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return b.add(mediaType, raw, more...)
}

// image adds an image with one layer and returns the descriptor of its manifest.
func (b blobs) image(layerType string, plain, packed []byte, more ...func(config map[string]any)) map[string]any {
	config := b.addJSON(imagetest.TypeConfig, map[string]any{
		"os":           "linux",
		"architecture": runtime.GOARCH,
		"config":       map[string]any{"Cmd": []string{"/x"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{manifest.DigestOf(plain)}},
	}, more...)
	return b.addJSON(imagetest.TypeManifest, map[string]any{
		"schemaVersion": 2,
		"mediaType":     imagetest.TypeManifest,
		"config":        config,
		"layers":        []any{b.add(layerType, packed)},
	})
}

func (b blobs) index(entries ...map[string]any) map[string]any {
	return b.addJSON(imagetest.TypeIndex, map[string]any{"schemaVersion": 2, "manifests": entries})
}

// tag names a manifest by its descriptor.
func (b blobs) tag(name string, d map[string]any) { b[name] = b[d["digest"].(string)] }

func (b blobs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v2/" {
		return
	}
	id := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	found, ok := b[id]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", found.mediaType)
	_, _ = w.Write(found.raw)
}

func serve(t *testing.T, handler http.Handler) (host string) {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// as sets a field of a descriptor.
func as(key string, value any) func(map[string]any) {
	return func(d map[string]any) { d[key] = value }
}

// TestMediaTypes pulls images whose descriptors say all kinds of things.
func TestMediaTypes(t *testing.T) {
	plain := imagetest.LayerTar(t, imagetest.File("a", "1"))
	other := func(d map[string]any) {
		d["platform"] = map[string]any{"os": "linux", "architecture": "s390x"}
	}
	reg := blobs{}
	want := map[string]error{}
	put := func(name string, d map[string]any, err error) {
		reg.tag(name, d)
		want[name] = err
	}
	put("tar", reg.image(imagetest.TypeLayer, plain, plain), nil)
	put("gzip", reg.image(imagetest.TypeLayer+"+gzip", plain, gz(plain)), nil)
	put("zstd", reg.image(imagetest.TypeLayer+"+zstd", plain, zs(plain)), nil)
	put("restricted", reg.image(imagetest.TypeRestricted, plain, plain), nil)
	put("restricted-gzip", reg.image(imagetest.TypeRestricted+"+gzip", plain, gz(plain)), nil)
	put("docker", reg.image("application/vnd.docker.image.rootfs.diff.tar.gzip", plain, gz(plain)), nil)
	put("unknown-layer", reg.image("application/vnd.example.layer", plain, gz(plain)), nil)
	put("wrong-layer", reg.image(imagetest.TypeLayer+"+gzip", plain, zs(plain)), nil)
	put("docker-config", reg.image(imagetest.TypeLayer, plain, plain,
		as("mediaType", "application/vnd.docker.container.image.v1+json")), nil)
	put("artifact", reg.image(imagetest.TypeLayer, plain, plain, as("mediaType", "application/vnd.oci.empty.v1+json")), manifest.ErrArtifact)
	put("unknown-config", reg.image(imagetest.TypeLayer, plain, plain, as("mediaType", "application/vnd.example+json")), manifest.ErrArtifact)
	put("config-size", reg.image(imagetest.TypeLayer, plain, plain, as("size", 1)), manifest.ErrInvalid)
	put("negative-size", reg.image(imagetest.TypeLayer, plain, plain, as("size", -1)), manifest.ErrInvalid)
	put("sha512", reg.image(imagetest.TypeLayer, plain, plain, as("digest", "sha512:"+strings.Repeat("0", 128))), manifest.ErrInvalid)
	put("upper-case", reg.image(imagetest.TypeLayer, plain, plain, as("digest", "sha256:"+strings.Repeat("A", 64))), manifest.ErrInvalid)
	image := reg.image(imagetest.TypeLayer, plain, plain)
	put("empty-index", reg.index(), manifest.ErrNotFound)
	put("unknown-in-index", reg.index(reg.add("application/vnd.example+json", []byte("x")), image), nil)
	put("unknown-alone", reg.index(reg.add("application/vnd.example+json", []byte("x"))), manifest.ErrNotFound)
	put("digest-in-index", reg.index(reg.addJSON(imagetest.TypeManifest, "x", other, as("digest", "blake3:0")), image), nil)
	put("nested", reg.index(reg.index(image)), nil)
	wrongSize := reg.addJSON(imagetest.TypeManifest, map[string]any{"config": 1}, as("digest", image["digest"]))
	put("size-in-index", reg.index(wrongSize), manifest.ErrInvalid)
	host := serve(t, reg)
	for name, err := range want {
		img, got := newStore(t).Pull(t.Context(), Request{Ref: host + "/app:" + name})
		if !errors.Is(got, err) || err == nil && (got != nil || len(img.Layers) != 1) {
			t.Errorf("%s: got %v, want %v", name, got, err)
		}
	}
}

// TestFirstOfEqualsIsChosen: if several manifests match, the first one is pulled.
func TestFirstOfEqualsIsChosen(t *testing.T) {
	reg := blobs{}
	on := as("platform", map[string]any{"os": "linux", "architecture": runtime.GOARCH})
	var first string
	var entries []map[string]any
	for _, content := range []string{"1", "2", "3"} {
		plain := imagetest.LayerTar(t, imagetest.File("a", content))
		entry := reg.image(imagetest.TypeLayer, plain, plain)
		on(entry)
		entries = append(entries, entry)
		first = manifest.DigestOf(imagetest.LayerTar(t, imagetest.File("a", "1")))
	}
	reg.tag("t", reg.index(entries...))
	got, err := newStore(t).Pull(t.Context(), Request{Ref: serve(t, reg) + "/app:t"})
	if err != nil || got.Layers[0].DiffID != first {
		t.Errorf("got %+v, %v, want layer %s", got.Layers, err, first)
	}
}

// TestAnswersOfRegistries pulls from registries that answer in unusual ways.
func TestAnswersOfRegistries(t *testing.T) {
	plain := imagetest.LayerTar(t, imagetest.File("a", "1"))
	reg := blobs{}
	image := reg.image(imagetest.TypeLayer, plain, plain)
	reg.tag("t", image)
	digest := image["digest"].(string)
	document := reg[digest].raw
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
	}
	typed := func(mediaType string, raw []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(raw)
		}
	}
	coded := func(code string) string { return `{"errors":[{"code":"` + code + `"}]}` }
	for _, c := range []struct {
		name, ref, at string // the answer to paths with at is replaced
		answer        http.HandlerFunc
		is            error // nil: pulled
		text          string
	}{
		{"parameters of the type", ":t", "/manifests/", typed(imagetest.TypeManifest+"; charset=utf-8", document), nil, ""},
		{"no known type", ":t", "/manifests/", typed("application/json", document), nil, ""},
		{"a type that is not the manifest's", ":t", "/manifests/", typed(imagetest.TypeIndex, document), manifest.ErrInvalid, "media type"},
		{"other bytes for a digest", "@" + digest, "/manifests/", typed(imagetest.TypeManifest, append(document, ' ')), manifest.ErrInvalid, "digest"},
		{"another digest announced", ":t", "/manifests/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Docker-Content-Digest", imagetest.AnyDigest)
			reg.ServeHTTP(w, r)
		}, nil, ""},
		{"a warning", ":t", "/manifests/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Warning", `299 - "This image is deprecated."`)
			reg.ServeHTTP(w, r)
		}, nil, ""},
		{"a redirect", ":t", "/app/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, strings.Replace(r.URL.Path, "/app/", "/moved/", 1), http.StatusTemporaryRedirect)
		}, nil, ""},
		{"no manifest", ":t", "/manifests/", status(404, coded("MANIFEST_UNKNOWN")), manifest.ErrNotFound, "manifest unknown"},
		{"no manifest, no body", ":t", "/manifests/", status(404, ""), manifest.ErrNotFound, "manifest unknown"},
		{"no repository", ":t", "/manifests/", status(404, coded("NAME_UNKNOWN")), manifest.ErrNotFound, "repository name"},
		{"no blob", ":t", "/blobs/", status(404, coded("BLOB_UNKNOWN")), manifest.ErrNotFound, "blob unknown"},
		{"no blob, no body", ":t", "/blobs/", status(404, "gone"), manifest.ErrNotFound, "blob unknown"},
		{"denied", ":t", "/manifests/", status(403, coded("DENIED")), manifest.ErrUnauthorized, "denied"},
		{"unauthorized", ":t", "/manifests/", status(401, coded("UNAUTHORIZED")), manifest.ErrUnauthorized, "authorization failed"},
		{"a page for an error", ":t", "/manifests/", status(403, "<html>"), manifest.ErrUnauthorized, "authorization failed"},
		{"too many requests", ":t", "/manifests/", status(429, coded("TOOMANYREQUESTS")), manifest.ErrUnavailable, "too many"},
	} {
		host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" && strings.Contains(r.URL.Path, c.at) {
				c.answer(w, r)
				return
			}
			reg.ServeHTTP(w, r)
		}))
		got, err := newStore(t).Pull(t.Context(), Request{Ref: host + "/app" + c.ref})
		switch {
		case c.is == nil && (err != nil || !strings.HasSuffix(got.RepoDigests[0], digest)):
			t.Errorf("%s: got %q, %v, want it pulled as %s", c.name, got.RepoDigests, err, digest)
		case c.is != nil && (!errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text)):
			t.Errorf("%s: got %v, want %v and %q", c.name, err, c.is, c.text)
		}
	}
}

// TestWarningsOfRegistries: each warning is reported once, from a helper process, too, and changes nothing.
func TestWarningsOfRegistries(t *testing.T) {
	plain := imagetest.LayerTar(t, imagetest.File("a", "1"))
	reg := blobs{}
	reg.tag("t", reg.index(reg.image(imagetest.TypeLayer, plain, plain)))
	host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Warning", `299 - "deprecated \"soon\""`)
		w.Header().Add("Warning", `299 - "`+strings.Repeat("x", 5000)+`"`)
		w.Header().Add("Warning", `110 proxy "stale"`)
		reg.ServeHTTP(w, r)
	}))
	want := []string{`deprecated "soon"`, strings.Repeat("x", 500)}
	var got []string
	request := Request{Ref: host + "/app:t", Warn: func(text string) { got = append(got, text) }}
	if _, err := newStore(t).Pull(t.Context(), request); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	var log bytes.Buffer
	store := helped(t, helperMemory)
	store.log = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := store.Pull(t.Context(), Request{Ref: host + "/app:t", Tenant: "one"}); err != nil {
		t.Error(err)
	}
	store.Close() // no helper writes to the log after it
	if strings.Count(log.String(), "deprecated") != 1 || !strings.Contains(log.String(), host+"/app:t") {
		t.Errorf("the helper's store logged %q", log.String())
	}
}

// TestImageLayouts imports archives of the image layout that no library writes.
func TestImageLayouts(t *testing.T) {
	const version = `{"imageLayoutVersion":"1.0.0","x":1}`
	plain := imagetest.LayerTar(t, imagetest.File("a", "1"))
	reg := blobs{}
	image := reg.image(imagetest.TypeLayer, plain, plain)
	other := map[string]any{
		"mediaType": imagetest.TypeManifest,
		"digest":    imagetest.AnyDigest, // which is not there
		"size":      2,
		"platform":  map[string]any{"os": "linux", "architecture": "s390x"},
	}
	unknown := map[string]any{"mediaType": "application/vnd.example+json", "digest": imagetest.AnyDigest, "size": 2}
	missing := map[string]any{"mediaType": imagetest.TypeManifest, "digest": imagetest.AnyDigest, "size": 2}
	artifact := reg.image(imagetest.TypeLayer, plain, plain, as("mediaType", "application/vnd.oci.empty.v1+json"))
	for _, c := range []struct {
		name, version string
		entries       []map[string]any
		text          string // of the error; empty: one image is imported
	}{
		{"plain", version, []map[string]any{image}, ""},
		{"no oci-layout", "", []map[string]any{image}, ""},
		{"another version", `{"imageLayoutVersion":"2.0.0"}`, []map[string]any{image}, "version 1.0.0"},
		{"no version", `{}`, []map[string]any{image}, "version 1.0.0"},
		{"no object", `[]`, []map[string]any{image}, "version 1.0.0"},
		{"an unknown type", version, []map[string]any{unknown, image}, ""},
		{"an artifact in addition", version, []map[string]any{artifact, image}, ""},
		{"an artifact alone", version, []map[string]any{artifact}, "artifact"},
		{"blobs of another platform are not there", version, []map[string]any{other, image}, ""},
		{"another platform alone", version, []map[string]any{other}, "it has linux/s390x"},
		{"a blob is not there", version, []map[string]any{missing}, "archive lacks"},
		{"a wrong size", version, []map[string]any{{
			"mediaType": imagetest.TypeManifest,
			"digest":    image["digest"],
			"size":      1,
		}}, "its descriptor says 1"},
	} {
		entries := []imagetest.Entry{}
		if c.version != "" {
			entries = append(entries, imagetest.File("oci-layout", c.version))
		}
		index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": c.entries})
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, imagetest.File("index.json", string(index)))
		for digest, b := range reg {
			entries = append(entries, imagetest.File("blobs/sha256/"+manifest.HexOf(digest), string(b.raw)))
		}
		got, err := newStore(t).Import(t.Context(), bytes.NewReader(imagetest.LayerTar(t, entries...)))
		switch {
		case c.text == "" && (err != nil || len(got) != 1):
			t.Errorf("%s: got %v, %v, want one image", c.name, got, err)
		case c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.text)
		}
	}
}

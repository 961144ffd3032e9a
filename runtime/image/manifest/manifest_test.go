// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"keelson/runtime/image/imagetest"
)

const anyDigest = imagetest.AnyDigest

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
	n := (MaxDocument - len(head) - len(tail)) / (len(element) + 1)
	return []byte(head + strings.Repeat(element+",", n-1) + element + tail)
}

// TestDocumentsStaySmall: a document of the largest size costs little more memory than its bytes, whatever is in it.
func TestDocumentsStaySmall(t *testing.T) {
	manifest := `{"config":{"digest":"` + anyDigest + `"},`
	config := func(raw []byte) error {
		_, err := ParseConfig(raw, runtime.GOARCH)
		return err
	}
	document := func(raw []byte) error {
		_, err := parseDocument(raw, "")
		return err
	}
	dockerList := func(raw []byte) error {
		_, err := ParseDocker(raw)
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
		if used > 16*MaxDocument {
			t.Errorf("%s: %d MiB were allocated for %d", name, used>>20, len(c.raw)>>20)
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v, want it parsed: %v", name, err, c.ok)
		}
	}
}

// TestPlatformNames: platforms are compared as other runtimes do, and of several variants the best that runs is chosen.
func TestPlatformNames(t *testing.T) {
	const manifest = "application/vnd.oci.image.manifest.v1+json"
	rank := func(arch, os, name, variant string) int {
		p := &platform{OS: os, Architecture: name, Variant: variant}
		return rankPlatform(Descriptor{MediaType: manifest, Platform: p}, arch)
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
		{rank("arm64", "linux", "arm64", ""), rankPlatform(Descriptor{MediaType: manifest}, "arm64")},
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
		conf, err := ParseConfig([]byte(c.raw), c.arch)
		if (err == nil) != c.ok {
			t.Errorf("%s for %q: got %v, want it accepted: %v", c.raw, c.arch, err, c.ok)
		}
		if err == nil && strings.Contains(c.raw, "more") && len(conf.Kept().Volumes) != 2 {
			t.Errorf("%s: got volumes %v", c.raw, conf.Kept().Volumes)
		}
	}
}

// TestManifestFields has the rules of manifests and indexes that one document shows.
func TestManifestFields(t *testing.T) {
	config := `"config":{"mediaType":"` + imagetest.TypeConfig + `","digest":"` + anyDigest + `","size":2}`
	for _, c := range []struct {
		name, mediaType, raw string
		want                 kindOf // kindOther: refused
	}{
		{"plain", imagetest.TypeManifest, `{"schemaVersion":2,` + config + `,"layers":[]}`, kindManifest},
		{"no layers", imagetest.TypeManifest, `{"schemaVersion":2,` + config + `}`, kindManifest},
		{"no schema version", imagetest.TypeManifest, `{` + config + `}`, kindManifest},
		{"schema version 1", imagetest.TypeManifest, `{"schemaVersion":1,` + config + `}`, kindOther},
		{"schema version 3", imagetest.TypeManifest, `{"schemaVersion":3,` + config + `}`, kindOther},
		{"no config", imagetest.TypeManifest, `{"schemaVersion":2,"layers":[]}`, kindOther},
		{"docker's type inside", imagetest.TypeManifest, `{"mediaType":"` + imagetest.TypeDockerManifest + `",` + config + `}`, kindManifest},
		{"says index", imagetest.TypeManifest, `{"mediaType":"` + imagetest.TypeIndex + `",` + config + `}`, kindOther},
		{"says manifest", imagetest.TypeIndex, `{"mediaType":"` + imagetest.TypeManifest + `","manifests":[]}`, kindOther},
		{"unknown type, says index", "text/plain", `{"mediaType":"` + imagetest.TypeDockerIndex + `"}`, kindIndex},
		{"unknown types", "text/plain", `{"mediaType":"a/b","manifests":[]}`, kindIndex},
		{"both at once", imagetest.TypeManifest, `{` + config + `,"manifests":[{"digest":"` + anyDigest + `"}]}`, kindOther},
		{"both, as index", imagetest.TypeIndex, `{"layers":[{}],"manifests":[{"digest":"` + anyDigest + `"}]}`, kindOther},
		{"empty index", imagetest.TypeIndex, `{"schemaVersion":2,"manifests":[]}`, kindIndex},
		{
			"unknown fields and annotations", imagetest.TypeManifest, `{"schemaVersion":2,"x":[1],"artifactType":"a/b","subject":` +
				`{"mediaType":"a/b","digest":"blake3:0","size":1},"annotations":{"com.example.a":""},` + config + `}`,
			kindManifest,
		},
		{"data in a descriptor", imagetest.TypeManifest, `{"layers":[{"data":"e30=","urls":["http://x"]}],` + config + `}`, kindManifest},
	} {
		doc, err := parseDocument([]byte(c.raw), c.mediaType)
		if c.want == kindOther {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: got %v, want it refused", c.name, err)
			}
			continue
		}
		if err != nil || doc.kind != c.want {
			t.Errorf("%s: got %+v, %v, want kind %d", c.name, doc, err, c.want)
		}
	}
}

// TestConfigFields has the rules of an image's config.
func TestConfigFields(t *testing.T) {
	for _, c := range []struct {
		raw string
		ok  bool
	}{
		{`{"rootfs":{"type":"layers","diff_ids":["` + anyDigest + `"]}}`, true},
		{`{"rootfs":{"diff_ids":[]}}`, true},
		{`{"rootfs":{"type":"squashfs","diff_ids":[]}}`, false},
		{`{"rootfs":{"type":"layers","diff_ids":["` + strings.ToUpper(anyDigest) + `"]}}`, false},
		{`{"rootfs":{"type":"layers","diff_ids":["md5:0"]}}`, false},
		{`{"os":"linux","architecture":"amd64","variant":"v1"}`, true},
		{`{"os":"linux","architecture":"amd64","variant":"v9"}`, false},
		{`{"os":"linux","architecture":"riscv64"}`, false},
		{`{"os":"windows","architecture":"amd64","os.version":"10","os.features":["win32k"]}`, false},
		{`{"author":"a","x":{"y":1},"config":{"Memory":1,"Healthcheck":{},"Labels":{"a":""},"ExposedPorts":{"1/tcp":{}}}}`, true},
		{`{"history":[{"empty_layer":true}],"created":"2015-10-31T22:22:56.015925234Z"}`, true},
	} {
		if _, err := ParseConfig([]byte(c.raw), "amd64"); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want it accepted: %v", c.raw, err, c.ok)
		}
	}
}

// TestNamesOfRegistries: names, tags and digests have the grammar of the specification.
func TestNamesOfRegistries(t *testing.T) {
	for ref, ok := range map[string]bool{
		"r.io/a/b_c/d__e/f-g/h--i/j.k:t":           true,
		"r.io/a:" + strings.Repeat("t", 128):       true,
		"r.io/a:" + strings.Repeat("t", 129):       false,
		"r.io/a:.t":                                false,
		"r.io/a:_t.-":                              true,
		"r.io/A:t":                                 false,
		"r.io/a..b:t":                              false,
		"r.io/a___b:t":                             false,
		"r.io/a/:t":                                false,
		"r.io/a@" + anyDigest:                      true,
		"r.io/a:t@" + anyDigest:                    true,
		"r.io/a@" + strings.ToUpper(anyDigest):     false,
		"r.io/a@sha256:" + strings.Repeat("A", 64): false,
		"r.io/a@sha256:00":                         false,
	} {
		if _, err := ParseName(ref); (err == nil) != ok {
			t.Errorf("%s: got %v, want it accepted: %v", fmt.Sprintf("%.60s", ref), err, ok)
		}
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"nginx":               "docker.io/library/nginx:latest",
		"nginx:1":             "docker.io/library/nginx:1",
		"me/app":              "docker.io/me/app:latest",
		"quay.io/a/b:c":       "quay.io/a/b:c",
		"localhost:5000/x":    "localhost:5000/x:latest",
		"index.docker.io/x":   "docker.io/library/x:latest",
		"[::1]:5000/x:y":      "[::1]:5000/x:y",
		"a:1@sha256:" + zeros: "docker.io/library/a@sha256:" + zeros,
	} {
		if got, err := ParseName(in); err != nil || got.String() != want {
			t.Errorf("parseName(%q): got %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "A", "a b", "a:", "sha256:" + zeros, "a@sha512:" + zeros + zeros} {
		if got, err := ParseName(in); !errors.Is(err, ErrReference) {
			t.Errorf("parseName(%q): got %q, %v", in, got, err)
		}
	}
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{
		"nginx:1@sha256:" + zeros, "nginx", "registry.example.com:5000/team/app:v1.2", "library/x", "docker.io/a/b",
		"LOCALHOST/x:1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		full, err := ParseName(in)
		if err != nil {
			return
		}
		if again, err := ParseName(full.String()); err != nil || again.String() != full.String() {
			t.Errorf("parseName(%q) = %q, of which parseName gives %q, %v", in, full, again, err)
		}
	})
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

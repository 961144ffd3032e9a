// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
)

// archivedDocuments serves the test's resources with an archive that was made of them.
func archivedDocuments(t testing.TB, archiveOf, served []Resource) *http.ServeMux {
	t.Helper()
	file, err := Archive(archiveOf)
	if err != nil {
		t.Fatal(err)
	}
	documents := New("v1.37.2", "", served)
	documents.archive = openArchive(file)
	mux := http.NewServeMux()
	documents.Mount(mux)
	return mux
}

func TestArchiveIsTheSources(t *testing.T) {
	brought := archivedDocuments(t, resources(), resources())
	documents := New("v1.37.2", "", resources())
	documents.archive = &archive{}
	made := http.NewServeMux()
	documents.Mount(made)
	for _, path := range []string{"/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/version"} {
		got := get(t, brought, path).Body.Bytes()
		if want := get(t, made, path).Body.Bytes(); !bytes.Equal(got, want) {
			t.Errorf("%s: got %.300s, want %.300s", path, got, want)
		}
	}
	got := get(t, brought, "/openapi/v3/api/v1", "Accept", protobufV3)
	want := get(t, made, "/openapi/v3/api/v1", "Accept", protobufV3)
	sameMessages(t, &openapiv3.Document{}, &openapiv3.Document{}, want.Body.Bytes(), got.Body.Bytes())
	got = get(t, brought, "/openapi/v2", "Accept", protobufV2)
	want = get(t, made, "/openapi/v2", "Accept", protobufV2)
	sameMessages(t, &openapiv2.Document{}, &openapiv2.Document{}, want.Body.Bytes(), got.Body.Bytes())
}

// TestArchiveOfOtherResources: without a gate, its resources are in no document.
func TestArchiveOfOtherResources(t *testing.T) {
	all := resources()
	fewer := resources()
	fewer[0].Verbs = fewer[0].Verbs[:1]
	archived := archivedDocuments(t, all, fewer)
	documents := New("v1.37.2", "", fewer)
	documents.archive = &archive{}
	made := http.NewServeMux()
	documents.Mount(made)
	at := "/openapi/v3/" + path(fewer[0].GVR.GroupVersion())
	if got, want := get(t, archived, at).Body.Bytes(), get(t, made, at).Body.Bytes(); !bytes.Equal(got, want) {
		t.Errorf("got %.300s, want %.300s", got, want)
	}
}

// TestArchiveIsUsed: the document comes from the archive, not from the sources.
func TestArchiveIsUsed(t *testing.T) {
	made := 0
	documents := New("v1.37.2", "", nil)
	documents.archive = &archive{}
	one := documents.fixed("version", protobufV3, nil, nil, func() (any, error) {
		made++
		return json.RawMessage(`{"openapi":"3.0.0","info":{"title":"","version":""},"paths":{}}`), nil
	})
	if _, err := one.pieces[0].json(); err != nil || made != 1 {
		t.Fatalf("with an empty archive: made %d times, %v", made, err)
	}
	out := &archiver{bases: map[string]int{}, plain: map[string][]byte{}}
	out.add(one, formsV3)
	if out.err != nil {
		t.Fatal(out.err)
	}
	made = 0
	documents.cache = newCache(cacheBytes)
	documents.archive = &archive{out.entries, out.content.Bytes()}
	b, err := one.pieces[0].json()
	message, err2 := one.pieces[0].protobuf()
	if len(b) == 0 || err != nil || len(message) == 0 || err2 != nil || made != 0 {
		t.Errorf("got %d bytes, %v, %d of protobuf, %v, made %d times", len(b), err, len(message), err2, made)
	}
}

func TestArchiveThatIsCut(t *testing.T) {
	file, err := Archive(resources())
	if err != nil {
		t.Fatal(err)
	}
	cut := openArchive(file[:len(file)-1])
	last := cut.entries[len(cut.entries)-1]
	if b, err := cut.read(last.Name, last.Form, last.Sum, "v1"); err == nil {
		t.Errorf("got %d bytes of an archive that ends too early", len(b))
	}
}

// BenchmarkFirstDocument is what the first client after a start waits for.
func BenchmarkFirstDocument(b *testing.B) {
	file, err := Archive(resources())
	if err != nil {
		b.Fatal(err)
	}
	for _, how := range []struct {
		name    string
		archive *archive
	}{{"archive", openArchive(file)}, {"sources", &archive{}}} {
		b.Run(how.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				documents := New("v1.37.2", "", resources())
				documents.archive = how.archive
				doc := documents.state.Load().v3["api/v1"]
				if _, err := documents.made(doc, &formsV3[1]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"keelson/api/core"
	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
	"keelson/apiserver/table"
	"keelson/apiserver/wire"
)

// listed returns a page of n ConfigMaps of about size bytes; 0: with content that is difficult to encode.
func listed(n, size int, memo *objects.Memo) *objects.List {
	odd := []map[string]string{
		{"long": strings.Repeat("a long line of words that YAML breaks ", 10)},
		{"lines": "one\n  two\n\nthree\n", "end": "no newline\nat the end", "lead": "  two spaces\nfirst"},
		{
			"html":    "<a & b>\u2028",
			"unicode": "Jörg \U0001F600",
			"looks":   "true",
			"number":  "0x10",
			"empty":   "",
		},
		nil,
	}
	list := &objects.List{Revision: 77, Continue: "token"}
	for i := range n {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name:            fmt.Sprintf("m-%d", i),
			Namespace:       "default",
			Labels:          map[string]string{"a": "b"},
			ResourceVersion: "7",
		}}
		if size > 0 {
			configMap.Data = map[string]string{"data": strings.Repeat("x", size)}
		} else {
			configMap.Data = odd[i%len(odd)]
		}
		list.Items = append(list.Items, objects.NewEntry(configMap.Name, configMap, 7, memo))
	}
	return list
}

// whole returns the response encoded in one piece, with Kubernetes' list types.
func whole(t *testing.T, s *negotiated, page *objects.List) []byte {
	t.Helper()
	var obj apiruntime.Object
	switch s.want.As {
	case asTable:
		var objs []kind.Object
		for _, e := range page.Items {
			objs = append(objs, e.Object)
		}
		tab, err := table.Of(s.res.Kind, objs, listMeta(page), table.Form{Version: s.want.Version, Include: s.include},
			true)
		if err != nil {
			t.Fatal(err)
		}
		tab.SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: "v1", Kind: "Table"})
		obj = tab
	case asPartial:
		list := &metav1.PartialObjectMetadataList{ListMeta: listMeta(page), Items: []metav1.PartialObjectMetadata{}}
		list.SetGroupVersionKind(schema.GroupVersionKind{
			Group:   metav1.GroupName,
			Version: "v1",
			Kind:    "PartialObjectMetadataList",
		})
		for _, e := range page.Items {
			p, err := partial(e.Object, schema.GroupVersionKind{
				Group:   metav1.GroupName,
				Version: "v1",
				Kind:    "PartialObjectMetadata",
			})
			if err != nil {
				t.Fatal(err)
			}
			list.Items = append(list.Items, *p)
		}
		obj = list
	default:
		list := &corev1.ConfigMapList{
			TypeMeta: metav1.TypeMeta{
				Kind:       "ConfigMapList",
				APIVersion: "v1",
			},
			ListMeta: listMeta(page),
			Items:    []corev1.ConfigMap{},
		}
		for _, e := range page.Items {
			list.Items = append(list.Items, *e.Object.(*corev1.ConfigMap)) // listed makes them
		}
		obj = list
	}
	if s.want.Media == wire.Proto {
		b, err := wire.NewEncoder(wire.Proto, obj.GetObjectKind().GroupVersionKind()).Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case s.want.Media == wire.YAML:
		if b, err = yaml.JSONToYAML(b); err != nil {
			t.Fatal(err)
		}
		return b
	case s.want.Pretty:
		var out bytes.Buffer
		if err := json.Indent(&out, b, "", "  "); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	return append(b, '\n')
}

func configMaps() *resources.Resource {
	return resources.New(resources.Row{Kind: core.ConfigMap()}, nil)
}

// forms are all forms of a list.
var forms = []struct {
	name   string
	accept string
	query  string
}{
	{"JSON", "application/json", ""},
	{"pretty JSON", "application/json", "pretty=1"},
	{"YAML", "application/yaml", ""},
	{"protobuf", "application/vnd.kubernetes.protobuf", ""},
	{"Table", "application/json;as=Table;g=meta.k8s.io;v=v1", ""},
	{"Table with objects", "application/json;as=Table;g=meta.k8s.io;v=v1", "includeObject=Object"},
	{"Table, pretty", "application/json;as=Table;g=meta.k8s.io;v=v1", "pretty=1"},
	{"Table, YAML", "application/yaml;as=Table;g=meta.k8s.io;v=v1", ""},
	{"metadata", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", ""},
	{"metadata, YAML", "application/yaml;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", ""},
	{"metadata, protobuf", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", ""},
}

func formed(t testing.TB, res *resources.Resource, accept, query string) (*negotiated, *http.Request) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/api/v1/configmaps?"+query, http.NoBody)
	r.Header.Set("Accept", accept)
	s, err := negotiateList(r, res)
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

// TestListsItemByItem: a list written item by item equals the same list encoded in one piece, in every form, long or
// short, compressed or not.
func TestListsItemByItem(t *testing.T) {
	res := configMaps()
	for _, f := range forms {
		for _, n := range []int{0, 1, 5, 2000} {
			page := listed(n, 0, nil)
			s, r := formed(t, res, f.accept, f.query)
			want := whole(t, s, page)
			for _, zip := range []bool{false, true} {
				if zip {
					r.Header.Set("Accept-Encoding", "gzip")
				}
				recorder := httptest.NewRecorder()
				if err := s.writeList(recorder, r, page); err != nil {
					t.Fatal(err)
				}
				got := recorder.Body.Bytes()
				packed := recorder.Header().Get("Content-Encoding") == "gzip"
				if packed {
					z, err := gzip.NewReader(recorder.Body)
					if err != nil {
						t.Fatal(err)
					}
					if got, err = io.ReadAll(z); err != nil {
						t.Fatal(err)
					}
				}
				if large := len(want) >= 128<<10; packed != (zip && large) ||
					!large && recorder.Header().Get("Content-Length") != fmt.Sprint(len(want)) {
					t.Errorf("%s of %d: %d bytes, header %v", f.name, n, len(want), recorder.Header())
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("%s of %d items (-want +got):\n%.2000s", f.name, n, cmp.Diff(string(want), string(got)))
				}
			}
		}
	}
}

// takes is a client that disconnects after leaves bytes of the response; 0: never.
type takes struct {
	header http.Header
	leaves int64
	got    int64
	leave  func()
}

func (w *takes) Header() http.Header { return w.header }
func (w *takes) WriteHeader(int)     {}
func (w *takes) Write(b []byte) (int, error) {
	if w.got += int64(len(b)); w.leaves > 0 && w.got >= w.leaves && w.leave != nil {
		w.leave()
		w.leave = nil
	}
	return len(b), nil
}

// TestListEndsWithItsClient: writing stops when the client disconnects or the deadline passes, and an incomplete
// response is aborted, so that no client takes it for complete.
func TestListEndsWithItsClient(t *testing.T) {
	res := configMaps()
	page := listed(500, 4<<10, nil)
	for _, f := range forms {
		// too short to be interrupted
		if strings.HasPrefix(f.name, "metadata") ||
			strings.HasPrefix(f.name, "Table") && f.name != "Table with objects" {
			continue
		}
		negotiated, r := formed(t, res, f.accept, f.query)
		ctx, cancel := context.WithCancel(t.Context())
		w := &takes{header: http.Header{}, leaves: 200 << 10, leave: cancel}
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
					t.Errorf("%s: the answer was not broken off: %v", f.name, err)
				}
			}()
			_ = negotiated.writeList(w, r.WithContext(ctx), page)
		}()
		if w.got > 500<<10 {
			t.Errorf("%s: %d bytes were written, the client left after %d", f.name, w.got, w.leaves)
		}
		w = &takes{header: http.Header{}}
		if err := negotiated.writeList(w, r.WithContext(ctx), page); !errors.Is(err, context.Canceled) || w.got > 0 {
			t.Errorf("%s: to a client that has left before: %d bytes, error %v", f.name, w.got, err)
		}
		cancel()
	}
}

// live returns the live heap after the last garbage collection. The size of the whole heap would depend on the machine.
func live() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// TestListMemory: many concurrent large lists, of every form, need little more memory than the objects. Encoded in one
// piece they would need many times their size (YAML: 40 times).
func TestListMemory(t *testing.T) {
	const items, size, clients = 1500, 4 << 10, 33 // 6 MB a list
	const most = 64 << 20
	res := configMaps()
	page := listed(items, size, objects.NewMemo(1<<20))
	runtime.GC()
	base := live()
	var peak atomic.Uint64
	done := make(chan struct{})
	var watcher, wg sync.WaitGroup
	watcher.Go(func() {
		for {
			peak.Store(max(peak.Load(), live()))
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	for i := range clients {
		f := forms[i%len(forms)]
		s, r := formed(t, res, f.accept, f.query)
		if i%2 == 0 {
			r.Header.Set("Accept-Encoding", "gzip")
		}
		wg.Go(func() {
			if err := s.writeList(&takes{header: http.Header{}}, r, page); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(done)
	watcher.Wait()
	if more := int64(peak.Load()) - int64(base); more > most { // sizes of a heap
		t.Errorf("%d lists of %d MB took %d MB more, and may take %d", clients, items*size>>20, more>>20, most>>20)
	} else {
		t.Logf("%d lists of %d MB took %d MB more", clients, items*size>>20, more>>20)
	}
}

// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"keelson/store"
	"keelson/store/embed"
)

func example(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := NewWriter(&buf)
	err := errors.Join(w.File("pki/ca.key", []byte("secret")), w.KV(store.KV{
		Key:      "/a",
		Value:    []byte("1"),
		Revision: 7,
		Created:  5,
		Version:  2,
	}),
		w.KV(store.KV{Key: "/b", Value: nil, Revision: 300}))
	s, cerr := w.Close(301)
	if err = errors.Join(err, cerr); err != nil || s != (Summary{301, 2}) {
		t.Fatalf("write: %+v, %v", s, err)
	}
	return buf.Bytes()
}

func read(b []byte) (string, Summary, error) {
	var got strings.Builder
	s, err := Read(bytes.NewReader(b), Sink{
		File: func(name string, content []byte) error {
			fmt.Fprintf(&got, "%s=%s ", name, content)
			return nil
		},
		KV: func(kv store.KV) error {
			fmt.Fprintf(&got, "%s=%s@%d/%d/%d ", kv.Key, kv.Value, kv.Revision, kv.Created, kv.Version)
			return nil
		},
	})
	return got.String(), s, err
}

func TestRoundTrip(t *testing.T) {
	got, s, err := read(example(t))
	want := "pki/ca.key=secret /a=1@7/5/2 /b=@300/0/0 "
	if err != nil || got != want || s != (Summary{301, 2}) {
		t.Errorf("Read: got %q, %+v, %v; want %q", got, s, err, want)
	}
}

// TestFormatOne reads a backup of an older program, which knew only the last revision of a key.
func TestFormatOne(t *testing.T) {
	b := []byte(magic + "1\nK\x02/a\x07\x011E\x08\x01")
	sum := sha256.Sum256(b)
	got, s, err := read(append(b, sum[:]...))
	if want := "/a=1@7/0/0 "; err != nil || got != want || s != (Summary{8, 1}) {
		t.Errorf("Read: got %q, %+v, %v; want %q", got, s, err, want)
	}
}

// TestDamage flips each bit and cuts at each byte: no damage may pass.
func TestDamage(t *testing.T) {
	good := example(t)
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if _, _, err := read(bad); err == nil {
				t.Errorf("bit %d of byte %d flipped: no error", bit, i)
			}
		}
		if _, _, err := read(good[:i]); err == nil {
			t.Errorf("cut at byte %d: no error", i)
		}
	}
	var d *DamagedError
	if _, _, err := read(append(bytes.Clone(good), 0)); !errors.As(err, &d) {
		t.Errorf("a byte too many: got %v", err)
	}
	if _, _, err := read([]byte(magic + "3\n")); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("a newer format: got %v", err)
	}
	if _, _, err := read([]byte("apiVersion: v1\nkind: Pod\n")); err == nil ||
		!strings.Contains(err.Error(), "not a backup") {
		t.Errorf("another file: got %v", err)
	}
}

func FuzzRead(f *testing.F) {
	whole := example(f)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte(magic + "2\n"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _, _ = read(b) })
}

func TestWalk(t *testing.T) {
	st, err := embed.Open(embed.Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	var want, got []store.KV
	for i := range 2*page + 1 {
		kv := store.KV{Key: fmt.Sprintf("/k/%06d", i), Value: fmt.Append(nil, i)}
		w, err := st.Create(t.Context(), kv.Key, kv.Value)
		if err != nil {
			t.Fatal(err)
		}
		kv.Revision = w.Revision
		kv.Created = w.Revision
		kv.Version = 1
		want = append(want, kv)
	}
	rev, err := Walk(t.Context(), st, "/k/", func(kv store.KV) error {
		if len(got) == 0 { // what changes meanwhile is not seen
			if _, _, err := st.Delete(t.Context(), want[page+5].Key, 0); err != nil {
				return err
			}
		}
		got = append(got, kv)
		return nil
	})
	if err != nil || rev != want[len(want)-1].Revision || !cmp.Equal(got, want) {
		t.Errorf("Walk: %d keys at %d, %v; want %d", len(got), rev, err, len(want))
	}
}

// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnotherKindOfStore: what a directory records, or holds, of its store decides which flags it starts with. A
// refused start leaves nothing and opens nothing.
func TestAnotherKindOfStore(t *testing.T) {
	touch := func(names ...string) map[string]string {
		files := map[string]string{}
		for _, n := range names {
			files[n] = ""
		}
		return files
	}
	for what, c := range map[string]struct {
		files map[string]string
		etcd  bool
		want  string // the refusal; empty: none
		after string // the record
	}{
		"new, embedded":              {nil, false, "", "embedded"},
		"new, etcd":                  {nil, true, "", "etcd"},
		"keys alone, etcd":           {touch("pki/other"), true, "", "etcd"},
		"embedded":                   {map[string]string{storeUsedFile: "embedded\n"}, false, "", "embedded"},
		"embedded, now etcd":         {map[string]string{storeUsedFile: "embedded\n"}, true, "embedded store", "embedded"},
		"etcd, now embedded":         {map[string]string{storeUsedFile: "etcd 00000000000000ab\n"}, false, "00000000000000ab", "etcd 00000000000000ab"},
		"etcd not reached, embedded": {map[string]string{storeUsedFile: "etcd\n"}, false, "--etcd-servers", "etcd"},
		"older, store, embedded":     {touch("store/x", "kubeconfig"), false, "", ""},
		"older, store, now etcd":     {touch("store/x", "kubeconfig"), true, "embedded store", ""},
		"older, store lost":          {touch("store-created"), true, "embedded store", ""},
		"older, etcd, now embedded":  {touch("kubeconfig"), false, "--etcd-servers", ""},
		"older, etcd":                {touch("kubeconfig"), true, "", ""},
		"damaged":                    {map[string]string{storeUsedFile: "etc"}, false, "is damaged", "etc"},
		"emptied":                    {map[string]string{storeUsedFile: ""}, true, "is damaged", ""},
	} {
		dir := Dir(t.TempDir())
		for name, content := range c.files {
			if err := errors.Join(os.MkdirAll(filepath.Dir(dir.Sub(name)), 0o700),
				os.WriteFile(dir.Sub(name), []byte(content), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := os.ReadDir(string(dir))
		err := dir.KeepStoreKind(c.etcd)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want a refusal with %q", what, err, c.want)
			}
			if got, _ := os.ReadDir(string(dir)); len(got) != len(before) {
				t.Errorf("%s: the directory holds %v, before %v", what, got, before)
			}
		}
		if b, _ := os.ReadFile(dir.Sub(storeUsedFile)); strings.TrimSpace(string(b)) != c.after {
			t.Errorf("%s: the record is %q, want %q", what, b, c.after)
		}
	}
}

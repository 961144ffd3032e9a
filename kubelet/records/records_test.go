// SPDX-License-Identifier: Apache-2.0

package records_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"keelson/kubelet/records"
	"keelson/kubelet/rootdir"
)

// TestRecords: saved records can be read, and no name leads elsewhere.
func TestRecords(t *testing.T) {
	root := t.TempDir()
	dir := records.Dir{Root: rootdir.Dir(root), Name: "kept", Limit: 100}
	if names, err := dir.Names(); err != nil || len(names) != 0 {
		t.Errorf("before: %v %v", names, err)
	}
	if err := dir.Save("uid"+records.Suffix, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "kept", "cut.json.new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := dir.Names(); err != nil || !slices.Equal(names, []string{"uid.json"}) {
		t.Errorf("names: %v %v", names, err)
	}
	var got map[string]int
	if err := dir.Read("uid.json", &got); err != nil || got["a"] != 1 {
		t.Errorf("read %v %v", got, err)
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", ".json", ".x.json"} {
		if err := dir.Save(name, 1); err == nil {
			t.Errorf("%q was written", name)
		}
	}
	if err := dir.Save("big", make([]byte, 200)); err == nil {
		t.Error("more than the limit was written")
	}
	for range 2 {
		if err := dir.Remove("uid.json"); err != nil {
			t.Error(err)
		}
	}
	if err := dir.Read("uid.json", &got); err == nil {
		t.Error("it was read after it was removed")
	}
}

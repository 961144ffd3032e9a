// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHierarchies: a directory in which no hierarchy is mounted is none, and those of this machine are mounted ones.
func TestHierarchies(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "hugetlb"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := hierarchies(dir); err != nil || len(got) > 0 {
		t.Errorf("a plain directory: %q, %v", got, err)
	}
	facts, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	if facts.Cgroups == CgroupV2 {
		return // there is one hierarchy
	}
	got, err := hierarchies(CgroupRoot)
	if err != nil || len(got) == 0 {
		t.Errorf("of this machine: %q, %v", got, err)
	}
}

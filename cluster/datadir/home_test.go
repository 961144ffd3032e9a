// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopyOfANode: a node does not start on a copy of its directory while the original exists. It does where the
// directory was moved, or where the original has gone.
func TestCopyOfANode(t *testing.T) {
	root := t.TempDir()
	at := func(name string) Dir { return Dir(filepath.Join(root, name)) }
	starts := func(d Dir, want string) {
		t.Helper()
		lock, err := d.LockNode()
		if err == nil {
			_ = lock.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("a node on %s: %v, want %q", d, err, want)
		}
	}
	if err := os.Mkdir(string(at("a")), 0o700); err != nil {
		t.Fatal(err)
	}
	starts(at("a"), "")
	starts(at("a"), "")
	if err := os.CopyFS(string(at("b")), os.DirFS(string(at("a")))); err != nil {
		t.Fatal(err)
	}
	starts(at("b"), "is a copy of "+string(at("a")))
	starts(at("a"), "")
	if err := os.Rename(string(at("a")), string(at("c"))); err != nil {
		t.Fatal(err)
	}
	starts(at("c"), "")
	starts(at("c"), "")
	starts(at("b"), "")                                      // where it is a copy from, there is nothing any more
	if err := os.Remove(at("c").Sub(homeFile)); err != nil { // of an earlier version
		t.Fatal(err)
	}
	starts(at("c"), "")
}

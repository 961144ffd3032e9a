// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"os"
	"path/filepath"
	"testing"
)

// TestInstallRepairs: a program that is not what was written is written again, whatever its stamp says.
func TestInstallRepairs(t *testing.T) {
	body := []byte("a program")
	for name, tc := range map[string]struct {
		hurt           func(path string) error
		unpacks        int
		repaired, link bool
	}{
		"unchanged": {hurt: func(string) error { return nil }, unpacks: 0},
		"other bytes": {
			hurt: func(p string) error {
				return os.WriteFile(p, []byte("A program"), 0o600)
			},
			unpacks:  1,
			repaired: true,
		},
		"cut short": {hurt: func(p string) error { return os.Truncate(p, 3) }, unpacks: 1, repaired: true},
		"gone":      {hurt: os.Remove, unpacks: 1, repaired: true},
		"writable":  {hurt: func(p string) error { return os.Chmod(p, 0o777) }, unpacks: 1, repaired: true},
		"a link": {
			hurt:     func(p string) error { return os.Rename(p, p+".elsewhere") },
			unpacks:  1,
			repaired: true,
			link:     true,
		},
		"note gone":    {hurt: func(p string) error { return os.Remove(p + ".from") }, unpacks: 1},
		"note damaged": {hurt: func(p string) error { return os.WriteFile(p+".from", []byte("?"), 0o600) }, unpacks: 1},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bin", "program")
			unpacks := 0
			install := func() bool {
				t.Helper()
				repaired, err := installPacked("program", path, []byte("packed"), func(string) ([]byte, error) {
					unpacks++
					return body, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return repaired
			}
			if install() || unpacks != 1 {
				t.Fatalf("first time: unpacked %d times, or repaired", unpacks)
			}
			if err := tc.hurt(path); err != nil {
				t.Fatal(err)
			}
			if tc.link {
				if err := os.Symlink(path+".elsewhere", path); err != nil {
					t.Fatal(err)
				}
			}
			if got := install(); got != tc.repaired || unpacks != 1+tc.unpacks {
				t.Errorf("repaired %v, unpacked %d times more, want %v, %d", got, unpacks-1, tc.repaired, tc.unpacks)
			}
			fi, err := os.Lstat(path)
			if err != nil || fi.Mode() != programMode {
				t.Fatalf("program: got %v, %v", fi, err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != string(body) {
				t.Errorf("program: got %q, %v", got, err)
			}
			if install() || unpacks != 1+tc.unpacks {
				t.Error("it is not at rest")
			}
		})
	}
}

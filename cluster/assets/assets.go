// SPDX-License-Identifier: Apache-2.0

package assets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"keelson/runtime/embedded"
)

// Variable is the environment variable by which harnesses find the programs.
const Variable = "KUBEBUILDER_ASSETS"

// Install makes dir a directory of the programs that a harness looks for: etcd, and kube-apiserver and kubectl, which
// are links to program. What is there already is replaced; other files stay.
func Install(dir, program string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := embedded.InstallEtcd(filepath.Join(dir, "etcd")); err != nil {
		return fmt.Errorf("install etcd: %w", err)
	}
	for _, name := range []string{APIServer, "kubectl"} {
		if err := link(program, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// link makes path a symbolic link to program.
func link(program, path string) error {
	if at, err := os.Readlink(path); err == nil && at == program {
		return nil
	}
	// replaced by rename: suites that start meanwhile find a program
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(program, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Installed returns the service of that name. It is an error if there is none.
func (m Machine) Installed(name string) (Service, error) {
	manager, err := managerFor(m.Init, m.Root)
	if err != nil {
		return Service{}, err
	}
	s, ok := m.read(manager, name)
	if ok {
		return s, nil
	}
	all := m.services(manager)
	if len(all) == 0 {
		return s, fmt.Errorf("no service %s is installed: `keelson install` installs it", name)
	}
	var names []string
	for _, other := range all {
		names = append(names, other.Name)
	}
	return s, fmt.Errorf("no service %s is installed; installed are %v", name, names)
}

// StopOn stops the service of a data directory, whose manager would start again what is ended there. It starts at the
// next boot. Where there is no such service, or no service manager, there is nothing to do.
func (m Machine) StopOn(ctx context.Context, dataDir string) error {
	manager, err := managerFor(m.Init, m.Root)
	if err != nil {
		return nil //nolint:nilerr // then nothing is a service here
	}
	for _, s := range m.services(manager) {
		if !sameDirectory(s.DataDir, dataDir) {
			continue
		}
		begin := time.Now()
		if _, err := m.run(ctx, manager.command(stop, s.Name)); err != nil { // also one that waits to be started again
			return err
		}
		m.Progress("service "+s.Name+" stopped until the next boot", time.Since(begin))
	}
	return nil
}

// sameDirectory reports whether two paths name one directory.
func sameDirectory(a, b string) bool {
	if a == b {
		return true
	}
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

// Uninstall stops a service, calls down, which ends what runs on its data directory, and deletes what Install has made,
// the service's file last: after an interruption it can be repeated. The user's configuration stays unless purge.
func (m Machine) Uninstall(ctx context.Context, s Service, purge bool, down func() error) error {
	manager, err := managerFor(m.Init, m.Root)
	if err != nil {
		return err
	}
	begin := time.Now()
	if m.Starts {
		if _, err := m.run(ctx, manager.command(stop, s.Name)); err != nil {
			return err
		}
		m.Progress("service stopped", time.Since(begin))
		if err := down(); err != nil {
			return err
		}
	}
	files := []string{manager.link(s.Name), FlagsFile(s.Name), pendingFile(s.Name)}
	if s.Copied && !slices.ContainsFunc(m.services(manager), func(other Service) bool {
		return other.Name != s.Name && other.Program == s.Program
	}) {
		files = append(files, s.Program)
	}
	if purge {
		if err := os.RemoveAll(m.at(Directory(s.Name))); err != nil {
			return fmt.Errorf("uninstall: %w", err)
		}
	}
	for _, file := range append(files, manager.file(s.Name)) {
		if err := os.Remove(m.at(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("uninstall: %w", err)
		}
	}
	_ = os.Remove(m.at(filepath.Dir(FlagsFile(s.Name)))) // the user's files may be there
	if manager.reload != nil && m.Starts {
		if _, err := m.run(ctx, manager.reload); err != nil {
			return err
		}
	}
	m.Progress("uninstalled "+s.Name, time.Since(begin))
	return nil
}

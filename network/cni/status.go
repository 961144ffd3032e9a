// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// statusFile holds the network in use, or why there is none, for `keelson status`. It exists while plugins attach pods.
const (
	statusFile = "network"
	maxStatus  = 4096
)

// writeStatus writes the status file. Errors are only logged: attaching does not depend on it.
func (n *Network) writeStatus(now *state) {
	path := filepath.Join(n.cfg.Dir, statusFile)
	err := os.MkdirAll(n.cfg.Dir, 0o700)
	if err == nil {
		err = os.WriteFile(path+".tmp", []byte(now.String()), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		n.log.Warn("write CNI network for `keelson status`", "err", err)
	}
}

// String returns the state in one line.
func (s *state) String() string {
	if s.err != nil {
		return "not ready: " + strings.ToValidUTF8(s.err.Error(), "?")
	}
	plugins := make([]string, len(s.list.Plugins))
	for i, p := range s.list.Plugins {
		plugins[i] = p.Network.Type
	}
	return fmt.Sprintf("%s of %s: %s", s.list.Name, s.path, strings.Join(plugins, ", "))
}

// Status reads the status of the Network with that Dir: "NAME of FILE: PLUGIN, PLUGIN" or "not ready: WHY"; empty when
// no plugins are in use.
func Status(dir string) (string, error) {
	f, err := os.Open(filepath.Join(dir, statusFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read which CNI network is in use: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxStatus))
	if err != nil {
		return "", fmt.Errorf("read which CNI network is in use: %w", err)
	}
	return strings.Join(strings.Fields(string(b)), " "), nil
}

// removeStatus removes the status file of an earlier process.
func (n *Network) removeStatus() error {
	if err := os.Remove(filepath.Join(n.cfg.Dir, statusFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CNI network status: %w", err)
	}
	return nil
}

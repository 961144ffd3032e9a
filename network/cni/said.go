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

// saidFile says which network is in use, or why none is, for who asks from another process. It is there while plugins attach pods.
const (
	saidFile = "network"
	maxSaid  = 4096
)

// say writes that down. It is no part of attaching: what goes wrong is logged.
func (n *Network) say(now *state) {
	path := filepath.Join(n.cfg.Dir, saidFile)
	err := os.MkdirAll(n.cfg.Dir, 0o700)
	if err == nil {
		err = os.WriteFile(path+".tmp", []byte(now.String()), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		n.log.Warn("`keelson status` will not know the network", "err", err)
	}
}

// String is the state in a line.
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

// Said is what the Network with that Dir says of itself: "NAME of FILE: PLUGIN, PLUGIN" or "not ready: WHY"; empty where plugins attach no
// pods.
func Said(dir string) (string, error) {
	f, err := os.Open(filepath.Join(dir, saidFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read which CNI network is in use: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSaid))
	if err != nil {
		return "", fmt.Errorf("read which CNI network is in use: %w", err)
	}
	return strings.Join(strings.Fields(string(b)), " "), nil
}

// unsay forgets what an earlier process said.
func (n *Network) unsay() error {
	if err := os.Remove(filepath.Join(n.cfg.Dir, saidFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget which CNI network was in use: %w", err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"keelson/lib/logrotate"
	"keelson/runtime/shim"
)

// loadSettings reads the settings of an earlier supervisor. Without them the defaults apply until the runtime calls
// configure.
func (s *supervisor) loadSettings() {
	raw, err := os.ReadFile(filepath.Join(s.dir, shim.SettingsName))
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = json.Unmarshal(raw, &s.settings)
	}
	if err == nil {
		err = s.settings.Logs.Complete().Validate()
	}
	if err != nil {
		s.settings = shim.Settings{}
		s.log.Printf("read settings, using the defaults: %v", err)
	}
}

func (s *supervisor) logPolicy() logrotate.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings.Logs.Complete()
}

// configure changes the settings, also for running containers. The file is written only after a change.
func (s *supervisor) configure(_ string, next shim.Settings) error {
	next.Logs = next.Logs.Complete()
	if err := next.Logs.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	same := s.settings == next
	s.settings = next
	running := make([]*container, 0, len(s.containers))
	for _, c := range s.containers {
		if c.io != nil {
			running = append(running, c)
		}
	}
	s.mu.Unlock()
	if same {
		return nil
	}
	for _, c := range running {
		c.io.mu.Lock()
		if c.io.log != nil {
			c.io.log.SetPolicy(next.Logs)
		}
		c.io.mu.Unlock()
	}
	raw, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	path := filepath.Join(s.dir, shim.SettingsName)
	if err := os.WriteFile(path+".tmp", raw, 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

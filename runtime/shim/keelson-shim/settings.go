// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"keelson/lib/logrotate"
	"keelson/runtime/shim"
)

// settings are what the runtime configures, which a later supervisor of the directory finds again.
type settings struct {
	path string

	mu    sync.Mutex
	value shim.Settings
}

// load reads the settings of an earlier supervisor. Without them, and with an error, the defaults apply until the
// runtime configures others.
func (s *settings) load() error {
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var found shim.Settings
	if err == nil {
		err = json.Unmarshal(raw, &found)
	}
	if err == nil {
		err = found.Logs.Complete().Validate()
	}
	if err != nil {
		return fmt.Errorf("read settings, using the defaults: %w", err)
	}
	s.value = found
	return nil
}

func (s *settings) logPolicy() logrotate.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value.Logs.Complete()
}

// set changes the settings, and reports whether they were others.
func (s *settings) set(next shim.Settings) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.value != next
	s.value = next
	return changed
}

// save writes the settings.
func (s *settings) save(value shim.Settings) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	if err := os.WriteFile(s.path+".tmp", raw, 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := os.Rename(s.path+".tmp", s.path); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// configure changes the settings, also for running containers. The file is written only after a change.
func (s *supervisor) configure(_ string, next shim.Settings) error {
	next.Logs = next.Logs.Complete()
	if err := next.Logs.Validate(); err != nil {
		return err
	}
	if !s.settings.set(next) {
		return nil
	}
	for _, c := range s.table.all() {
		if c.io != nil {
			c.io.SetPolicy(next.Logs)
		}
	}
	return s.settings.save(next)
}

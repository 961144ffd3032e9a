// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"keelson/kubelet/rootdir"
	"keelson/lib/inroot"
)

// record is what the disk says of a claim that pods of the node use. No container sees it.
type record struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid"`
	Pods      []string `json:"pods"`
	Drivers   []string `json:"drivers"`
	// Allocated are the devices that drivers were asked to prepare, so that others of the same claim are told from them.
	Allocated []string `json:"allocated,omitempty"`
	// Prepared: all drivers have answered, with Devices.
	Prepared bool     `json:"prepared,omitempty"`
	Devices  []device `json:"devices,omitempty"`
}

// device is what a driver has prepared.
type device struct {
	Driver   string   `json:"driver"`
	Pool     string   `json:"pool"`
	Device   string   `json:"device"`
	Requests []string `json:"requests,omitempty"` // none: all
	CDI      []string `json:"cdi,omitempty"`
}

// serves tells whether the device belongs to a request; "": any.
func (d *device) serves(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(r string) bool {
		return r == request || resourceclaim.BaseRequestRef(r) == request
	})
}

const (
	recordsDir = "dra" // within the kubelet's directory
	suffix     = ".json"
	maxRecord  = 4 << 20
	maxRecords = 4096
)

func (r *record) key() string { return r.Namespace + "/" + r.Name }

func (r *record) path() string { return filepath.Join(recordsDir, r.UID+suffix) }

// save writes the record whole, or not at all.
func (r *record) save(dir rootdir.Dir) error {
	if err := r.check(); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	root, err := inroot.Open(string(dir))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.MkdirAll(recordsDir, 0o700); err != nil {
		return err
	}
	if err := root.WriteFile(r.path()+".new", b, 0o600); err != nil {
		return err
	}
	return root.Rename(r.path()+".new", r.path())
}

func (r *record) remove(dir rootdir.Dir) error {
	root, err := inroot.Open(string(dir))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.Remove(r.path()); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// check makes sure that a record leads to no other file than its own.
func (r *record) check() error {
	if r.UID == "" || strings.HasPrefix(r.UID, ".") || filepath.Base(r.UID) != r.UID {
		return fmt.Errorf("%.100q cannot be part of a path", r.UID)
	}
	if r.Namespace == "" || r.Name == "" {
		return errors.New("it names no claim")
	}
	return nil
}

// load reads all records, and names those that cannot be read.
func load(dir rootdir.Dir) (found map[string]*claim, damaged []string, err error) {
	found = map[string]*claim{}
	root, err := inroot.Open(string(dir))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = root.Close() }() // O_PATH
	names, err := root.Names(recordsDir, maxRecords)
	if errors.Is(err, unix.ENOENT) {
		return found, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) {
			continue // of a write that was cut short
		}
		c := &claim{}
		b, err := root.ReadFile(filepath.Join(recordsDir, name), maxRecord)
		if err == nil {
			err = json.Unmarshal(b, &c.record)
		}
		if err == nil {
			err = c.check()
		}
		if err != nil || c.UID+suffix != name {
			damaged = append(damaged, name)
			continue
		}
		found[c.key()] = c
	}
	return found, damaged, nil
}

// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
)

// record is a volume's vol_data.json, with Kubernetes' field names. No container sees it.
type record struct {
	SpecVolID    string `json:"specVolID"` // names its directory
	VolumeHandle string `json:"volumeHandle"`
	DriverName   string `json:"driverName"`
	NodeName     string `json:"nodeName,omitempty"`
	AttachmentID string `json:"attachmentID,omitempty"`
	Mode         string `json:"volumeLifecycleMode,omitempty"`
	Block        bool   `json:"block,omitempty"`
}

const (
	dataFile  = "vol_data.json"
	published = "published"
	maxData   = 64 << 10
	maxNames  = 4096
)

func (r *record) key() key { return key{r.DriverName, r.VolumeHandle} }

// save creates dir and writes the record into it.
func (r *record) save(root *inroot.Dir, dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := root.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	at := filepath.Join(dir, dataFile)
	if old, err := root.ReadFile(at, maxData); err == nil && string(old) == string(b) {
		return nil
	}
	if err := root.WriteFile(at+".new", b, 0o640); err != nil {
		return err
	}
	return root.Rename(at+".new", at)
}

// read reads the record in dir. name is the volume name that it must have.
func read(root *inroot.Dir, dir, name string) (record, error) {
	var r record
	b, err := root.ReadFile(filepath.Join(dir, dataFile), maxData)
	if err != nil {
		return r, err
	}
	if r, err = parse(b); err == nil && name != "" && r.SpecVolID != name {
		err = fmt.Errorf("it is about the volume %.100q", r.SpecVolID)
	}
	return r, err
}

// parse parses a record and checks that it names its own directory and no other.
func parse(b []byte) (record, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return r, err
	}
	for _, part := range []string{r.SpecVolID, r.DriverName} {
		if part == "" || part == "." || part == ".." || filepath.Base(part) != part {
			return r, fmt.Errorf("%.100q cannot be part of a path", part)
		}
	}
	if r.VolumeHandle == "" {
		return r, errors.New("it names no volume")
	}
	return r, nil
}

// ofPod returns a pod's records, and the directories whose record is unreadable.
func ofPod(root *inroot.Dir, uid string) (found []record, damaged []string, err error) {
	for _, kind := range []string{mountsOf, devicesOf} {
		dir := filepath.Join("pods", uid, kind)
		names, err := root.Names(dir, maxNames)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, n := range names {
			r, err := read(root, filepath.Join(dir, n), n)
			if err == nil && r.Block != (kind == devicesOf) {
				err = errors.New("it is of another kind")
			}
			if err != nil {
				damaged = append(damaged, filepath.Join(dir, n))
				continue
			}
			found = append(found, r)
		}
	}
	return found, damaged, nil
}

// Load finds the volumes that an earlier run has mounted. pods are the pods that have a directory.
func (m *Mounter) Load(pods []string) error {
	root, err := inroot.Open(string(m.cfg.Dir))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // O_PATH
	for _, uid := range pods {
		found, damaged, err := ofPod(root, uid)
		if err != nil {
			return fmt.Errorf("look for volumes of pod %s: %w", uid, err)
		}
		for _, d := range damaged {
			m.cfg.Log.Warn("the record of a volume cannot be read: it is unmounted without its driver", "dir", d)
		}
		for i := range found {
			m.loaded(&found[i], uid)
		}
	}
	return m.loadStaged(root)
}

// loaded returns the volume of a record on the disk. It is used by the pod uid, or by no pod if uid is empty.
func (m *Mounter) loaded(r *record, uid string) *volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.volumeLocked(r.key())
	v.attached = v.attached || r.AttachmentID != ""
	if uid != "" && v.pods[uid] == nil {
		v.pods[uid] = &use{record: *r, names: map[string]bool{}}
	}
	return v
}

// loadStaged finds volumes that are staged, in use by a pod or not.
func (m *Mounter) loadStaged(root *inroot.Dir) error {
	drivers, err := root.Names(staging, maxNames)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for staged volumes: %w", err)
	}
	for _, d := range append(drivers, blockRecords) {
		names, err := root.Names(filepath.Join(staging, d), maxNames)
		if err != nil {
			continue // it is no directory, or has just gone
		}
		for _, n := range names {
			r, err := read(root, filepath.Join(staging, d, n), "")
			if err != nil {
				continue
			}
			if dir, _ := r.key().stagedAt(r.Block, r.SpecVolID); dir == filepath.Join(staging, d, n) {
				v := m.loaded(&r, "")
				v.staged = true
				v.record = r
			}
		}
	}
	return nil
}

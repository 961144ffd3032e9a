// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"

	"keelson/lib/record"
)

// attachment is the input of the plugins for a sandbox, stored in a file named by its id. It is immutable.
type attachment struct {
	Network      string          `json:"network"`
	Netns        string          `json:"netns"`
	Args         [][2]string     `json:"args"`
	Capabilities map[string]any  `json:"capabilities,omitempty"`
	Config       json.RawMessage `json:"config"`
	BinDirs      []string        `json:"binDirs"`
	// Addrs are set after ADD has succeeded; without them it was interrupted.
	Addrs []netip.Addr `json:"addrs,omitempty"`
}

func (n *Network) path(id string) string { return filepath.Join(n.cfg.Dir, "attachments", id) }

// readAttachments fills the maps from disk.
func (n *Network) readAttachments() error {
	if _, err := os.Stat(n.cfg.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ids, err := idsIn(n.cfg.Dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		a := &attachment{}
		damage, err := record.Read(n.path(id), func(b []byte) error {
			*a = attachment{}
			if err := json.Unmarshal(b, a); err != nil {
				return err
			}
			_, err := libcni.NetworkConfFromBytes(a.Config)
			return err
		})
		if err == nil && damage != nil {
			n.log.Error("damaged record of a pod's network restored from its copy", "sandbox", id, "error", damage)
		}
		if err != nil {
			kept, aside := record.SetAside(n.path(id), filepath.Join(n.cfg.Dir, "damaged"))
			n.log.Error("record of a pod's network is damaged: resources of its plugins may be left", "sandbox", id,
				"kept", kept, "error", errors.Join(err, aside, record.Remove(n.path(id))))
			continue
		}
		n.store(id, a)
	}
	return nil
}

// idsIn returns the ids of the sandboxes with a record in dir.
func idsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "attachments"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read attachments of pods: %w", err)
	}
	seen := map[string]bool{}
	var ids []string
	for _, e := range entries {
		id := record.Of(e.Name())
		if checkID(id) != nil || seen[id] {
			continue
		}
		seen[id] = true
		ids = append(ids, id)
	}
	return ids, nil
}

func (n *Network) known(id string) *attachment {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.attached[id]
}

func (n *Network) store(id string, a *attachment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attached[id] = a
	for _, addr := range a.Addrs {
		n.addrs[addr] = id
	}
}

// writeAttachment writes an attachment to disk and adds it to the map.
func (n *Network) writeAttachment(id string, a *attachment) error {
	body, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode attachment: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(n.path(id)), 0o700); err != nil {
		return fmt.Errorf("write attachment: %w", err)
	}
	if err := record.Write(n.path(id), body); err != nil {
		return err
	}
	n.store(id, a)
	return nil
}

func (n *Network) forget(id string, a *attachment) error {
	if err := record.Remove(n.path(id)); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.attached, id)
	for _, addr := range a.Addrs {
		if n.addrs[addr] == id {
			delete(n.addrs, addr)
		}
	}
	return nil
}

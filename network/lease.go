// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"keelson/lib/record"
)

// lease holds the addresses and ports of one sandbox. It is stored in a file named by the sandbox id, and is immutable.
type lease struct {
	Addrs []netip.Addr  `json:"addrs"`
	Link  string        `json:"link"` // the host's end
	Netns string        `json:"netns"`
	Ports []PortMapping `json:"ports,omitempty"`
	Boot  string        `json:"boot"` // boot id: leases do not survive a reboot

	keys []portKey // of Ports, in the same order
}

// decodeLease decodes a lease. It may have fewer families than the network, to which a second one was added later.
func decodeLease(b []byte, families families) (*lease, error) {
	var l lease
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, fmt.Errorf("decode lease: %w", err)
	}
	found := 0
	for _, f := range families {
		for _, a := range l.Addrs {
			if usable(f.pods, a) {
				found++
				break
			}
		}
	}
	if len(l.Addrs) == 0 || found != len(l.Addrs) {
		return nil, fmt.Errorf("lease of %v is not in the pod ranges", l.Addrs)
	}
	var err error
	if l.keys, err = keysOf(l.Ports); err != nil {
		return nil, err
	}
	return &l, nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// leaseRecords are the leases on disk. They are not synced: leases do not survive a reboot.
type leaseRecords struct {
	dir      string // has a file and its copy for each lease
	damaged  string // gets what was damaged
	names    names
	families families
	log      *slog.Logger
}

// ids returns the sandboxes that have a record, or at least its copy.
func (r *leaseRecords) ids() ([]string, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, record.Of(e.Name()))
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// read returns a lease and when it was written. A damaged one is restored from its copy.
func (r *leaseRecords) read(id string) (*lease, time.Time, error) {
	if err := checkID(id); err != nil {
		return nil, time.Time{}, err // the temporary file of a writer that was killed
	}
	var l *lease
	damage, err := record.Read(r.path(id), func(b []byte) (err error) {
		l, err = decodeLease(b, r.families)
		if err == nil && l.Link != r.names.link(id) && l.Link != r.names.bridgedLink(id) {
			err = fmt.Errorf("lease names link %q", l.Link)
		}
		return err
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	if damage != nil {
		kept, aerr := record.SetAside(r.path(id), r.damaged)
		r.log.Error("damaged address lease restored from its copy", "sandbox", id, "kept", kept, "error",
			errors.Join(damage, aerr))
		if err := r.write(id, l); err != nil {
			return nil, time.Time{}, err
		}
	}
	fi, err := os.Stat(r.path(id))
	if err != nil {
		return nil, time.Time{}, err
	}
	return l, fi.ModTime(), nil
}

func (r *leaseRecords) write(id string, l *lease) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode lease: %w", err)
	}
	return record.Write(r.path(id), b)
}

func (r *leaseRecords) remove(id string) error { return record.Remove(r.path(id)) }

// removeAll removes every record, copy and temporary file.
func (r *leaseRecords) removeAll() error {
	files, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove leases: %w", err)
	}
	for _, f := range files {
		if err := os.Remove(r.path(f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove leases: %w", err)
		}
	}
	return nil
}

func (r *leaseRecords) path(name string) string { return filepath.Join(r.dir, name) }

// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// settingOf returns the path of a record's sysctl: LINK is IPv4 forwarding, 6:LINK:NAME an IPv6 setting, bridge:NAME
// one of bridges, conntrack:NAME one of the connection table. Names of links have no colon.
func settingOf(record string) string {
	if name, ok := strings.CutPrefix(record, tracked); ok {
		return "/proc/sys/net/netfilter/nf_conntrack_" + name
	}
	if name, ok := strings.CutPrefix(record, "bridge:"); ok {
		return "/proc/sys/net/bridge/bridge-" + name
	}
	if name, ok := strings.CutPrefix(record, "6:"); ok {
		return ipv6Conf + strings.ReplaceAll(name, ":", "/")
	}
	return ipv4Conf + record + "/forwarding"
}

// settings changes sysctls of the machine that several clusters may need, and restores them with the last of those. The
// steps of the setup call set; Purge calls restore. It changes no setting that was on before the first cluster.
//
// The clusters that need a setting are recorded in /run/keelson/forwarding/NAMESPACE/RECORD, which like the setting
// does not survive a reboot: one file per cluster, and the value before the first of them in previousName. A record is
// written before its setting, and removed before the setting is restored. The lock is a file's, because other processes
// serve the other clusters; it is held for one set or restore, with no lock of this process.
type settings struct {
	runDir string
	id     string // of this cluster
}

// previousName is the file of the value before the first cluster.
const previousName = ".was" // not a valid cluster id

// lock returns the directory of the records, locked until unlock is called.
func (s settings) lock() (dir string, unlock func(), err error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return "", nil, fmt.Errorf("identify network namespace: %w", err)
	}
	all := filepath.Join(s.runDir, "forwarding")
	if err := os.MkdirAll(all, 0o700); err != nil {
		return "", nil, fmt.Errorf("record forwarding: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(all, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("record forwarding: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		_ = lock.Close() // nothing was written
		return "", nil, fmt.Errorf("lock the record of forwarding: %w", err)
	}
	dir = filepath.Join(all, strconv.FormatUint(ns.Ino, 10)+"-"+bootID())
	if err := os.MkdirAll(dir, 0o700); err != nil { // with the lock, because restore removes it
		_ = lock.Close()
		return "", nil, fmt.Errorf("record forwarding: %w", err)
	}
	return dir, func() { _ = lock.Close() }, nil // closing unlocks it
}

// set changes a setting and records that first: a record without the change, as a crash leaves it, is harmless.
func (s settings) set(record, value string) error {
	setting := settingOf(record)
	have, err := os.ReadFile(setting)
	if err != nil {
		return err
	}
	dir, unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	dir = filepath.Join(dir, record)
	was := strings.TrimSpace(string(have))
	if _, err := os.Stat(filepath.Join(dir, previousName)); errors.Is(err, fs.ErrNotExist) {
		if was == value {
			return nil // it was set before, so it is not restored
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, previousName), []byte(was), 0o600); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, s.id), nil, 0o600); err != nil {
		return fmt.Errorf("record forwarding: %w", err)
	}
	return setSysctl(setting, value)
}

// restore removes this cluster's records, and restores the settings that no other cluster needs.
func (s settings) restore() error {
	if _, err := os.Stat(s.runDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	links, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the record of forwarding: %w", err)
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, s.restoreOne(filepath.Join(dir, l.Name()), l.Name()))
	}
	_ = os.Remove(dir) // it fails if there are records of other clusters
	return errors.Join(errs...)
}

func (s settings) restoreOne(dir, link string) error {
	if err := os.Remove(filepath.Join(dir, s.id)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // this cluster does not need it
		}
		return fmt.Errorf("restore forwarding: %w", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if len(left) > 1 {
		return nil // another cluster needs it
	}
	was, err := os.ReadFile(filepath.Join(dir, previousName))
	if err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if !strings.Contains(link, ":") && isOn("/proc/sys/net/ipv4/ip_forward") {
		return nil // forwarding was enabled for the whole machine since
	}
	err = setSysctl(settingOf(link), string(was))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the link does not exist any more
	}
	return err
}

// setSysctl writes a value only if it differs: in containers /proc/sys may be read-only.
func setSysctl(path, value string) error {
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", "."),
			value, err)
	}
	return nil
}

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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const ipv4Conf = "/proc/sys/net/ipv4/conf/"

// setUpForwarding lets packets pass between the bridge and the links that lead elsewhere. Where the whole machine
// forwards already nothing changes. Links that appear later are covered by the next start.
func (n *Network) setUpForwarding(k *kernel) error {
	// Host ports on 127.0.0.1 leave by the bridge; the guard chain keeps the way closed from the other side.
	if err := setSysctl(ipv4Conf+n.bridge+"/route_localnet", "1"); err != nil {
		return err
	}
	if on, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err == nil && strings.TrimSpace(string(on)) == "1" {
		return nil
	}
	links := map[string]bool{n.bridge: true}
	all, err := k.rt.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	addrs, err := k.rt.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	has := map[int]bool{}
	for _, a := range addrs {
		has[a.LinkIndex] = true
	}
	for _, l := range all {
		if a := l.Attrs(); has[a.Index] && a.Name != "lo" {
			links[a.Name] = true
		}
	}
	delete(links, n.bridge)
	if err := setSysctl(ipv4Conf+n.bridge+"/forwarding", "1"); err != nil { // it goes with the bridge
		return err
	}
	for name := range links {
		err := n.forward(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the link has just gone
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Who needs a link's forwarding is recorded in /run/keelson/forwarding/NAMESPACE/LINK, which like the setting itself is gone after a
// restart of the machine: a file per cluster, and in wasName what it was before the first of them. The last one puts it back.
const wasName = ".was" // no cluster's id

// forwarding is the directory of the records, locked until unlock is called.
func (n *Network) forwarding() (dir string, unlock func(), err error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return "", nil, fmt.Errorf("identify network namespace: %w", err)
	}
	dir = filepath.Join(n.cfg.RunDir, "forwarding", strconv.FormatUint(ns.Ino, 10)+"-"+bootID())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("record forwarding: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(n.cfg.RunDir, "forwarding", "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("record forwarding: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		_ = lock.Close() // nothing was written
		return "", nil, fmt.Errorf("lock the record of forwarding: %w", err)
	}
	return dir, func() { _ = lock.Close() }, nil // which unlocks it
}

// forward turns a link's forwarding on. The record comes first: a crash leaves one of something that did not happen, which is harmless.
func (n *Network) forward(link string) error {
	setting := ipv4Conf + link + "/forwarding"
	have, err := os.ReadFile(setting)
	if err != nil {
		return err
	}
	dir, unlock, err := n.forwarding()
	if err != nil {
		return err
	}
	defer unlock()
	dir = filepath.Join(dir, link)
	was := strings.TrimSpace(string(have))
	if _, err := os.Stat(filepath.Join(dir, wasName)); errors.Is(err, fs.ErrNotExist) {
		if was == "1" {
			return nil // somebody else's: it stays when we go
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, wasName), []byte(was), 0o600); err != nil {
			return fmt.Errorf("record forwarding: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, n.cfg.ID), nil, 0o600); err != nil {
		return fmt.Errorf("record forwarding: %w", err)
	}
	return setSysctl(setting, "1")
}

// restoreForwarding gives up what forward recorded, and puts back what nobody else needs.
func (n *Network) restoreForwarding() error {
	if _, err := os.Stat(n.cfg.RunDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, unlock, err := n.forwarding()
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
		errs = append(errs, n.restoreLink(filepath.Join(dir, l.Name()), l.Name()))
	}
	_ = os.Remove(dir) // others may have records in it
	return errors.Join(errs...)
}

func (n *Network) restoreLink(dir, link string) error {
	if err := os.Remove(filepath.Join(dir, n.cfg.ID)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not ours
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
	was, err := os.ReadFile(filepath.Join(dir, wasName))
	if err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("restore forwarding: %w", err)
	}
	if on, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err == nil && strings.TrimSpace(string(on)) == "1" {
		return nil // somebody wants the whole machine to forward by now
	}
	err = setSysctl(ipv4Conf+link+"/forwarding", string(was))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the link is gone
	}
	return err
}

// setSysctl writes only what is not so already: reading is allowed in more places than writing.
func setSysctl(path, value string) error {
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", "."), value, err)
	}
	return nil
}

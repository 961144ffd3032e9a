// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// collect has plugins that can (CNI 1.1) give back what they hold for sandboxes that nobody has, as a crash of a plugin or of the
// machine leaves it. Clusters of this machine may share a network, so what any of them has is kept. No sandbox of theirs is attached or
// detached meanwhile: plugins could take what was given just now for a leftover. It tells whether it came to that.
func (n *Network) collect(ctx context.Context, list *libcni.NetworkConfigList) bool {
	ctx, cancel := context.WithTimeout(ctx, operationLimit)
	defer cancel()
	done, err := n.alone(ctx)
	if err != nil {
		n.log.Warn("plugins are not asked to give back what ended sandboxes had", "network", list.Name, "err", err)
		return false
	}
	defer done()
	valid, err := n.allAttachments()
	if err != nil {
		n.log.Error("sandboxes of this machine's clusters", "err", err) // and nothing is collected
		return false
	}
	e := &executor{slots: n.slots, limit: pluginLimit}
	if err := n.plugins(e).GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid}); err != nil && ctx.Err() == nil {
		n.log.Warn("plugins give back what ended sandboxes had", "network", list.Name, "err", explain(err))
	}
	return true
}

// busy keeps collections of this machine's clusters away until done is called. It waits for one that runs.
func (n *Network) busy() (done func(), err error) {
	f, err := n.openUsers()
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH) //nolint:gosec // a descriptor fits
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("wait for CNI's collection: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// alone waits until nobody is busy, and keeps it so until done is called.
func (n *Network) alone(ctx context.Context) (done func(), err error) {
	f, err := n.openUsers()
	if err != nil {
		return nil, err
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a descriptor fits
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if pause(ctx, wait); ctx.Err() != nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("wait until no sandbox is attached: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// openUsers opens the clusters' directory, where this one has said that it is there.
func (n *Network) openUsers() (*os.File, error) {
	if err := os.MkdirAll(n.users(), 0o700); err != nil {
		return nil, err
	}
	mine, text := filepath.Join(n.users(), n.cfg.ID), n.cfg.Dir+"\n"
	if b, err := os.ReadFile(mine); err != nil || string(b) != text {
		if err := os.WriteFile(mine, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return os.Open(n.users())
}

// users is where the clusters of this machine say where their attachments are: a file for each.
func (n *Network) users() string { return filepath.Join(n.cfg.RunDir, "cni") }

// allAttachments are those of all clusters of this machine.
func (n *Network) allAttachments() ([]types.GCAttachment, error) {
	entries, err := os.ReadDir(n.users())
	if err != nil {
		return nil, err
	}
	var out []types.GCAttachment
	for _, e := range entries {
		dir, err := os.ReadFile(filepath.Join(n.users(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just gone
		}
		if err != nil {
			return nil, err
		}
		ids, err := idsIn(strings.TrimSpace(string(dir)))
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			out = append(out, types.GCAttachment{ContainerID: id, IfName: podLink})
		}
	}
	return out, nil
}

// Purge detaches every sandbox and forgets that there was a network. What plugins have made for the machine, such as a bridge, is theirs
// and stays.
func (n *Network) Purge(ctx context.Context) error {
	var errs []error
	for _, id := range n.Attached() {
		errs = append(errs, n.Detach(ctx, id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(n.users(), n.cfg.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(n.cfg.Dir)
}

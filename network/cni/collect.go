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

// collect runs GC (CNI 1.1): plugins free what they hold for sandboxes that do not exist, as a crash of a plugin or of
// the machine leaves it. Clusters on this machine may share a network, so the attachments of all clusters are valid.
// Meanwhile no sandbox is attached or detached: plugins could free a new attachment. It reports whether GC ran.
func (n *Network) collect(ctx context.Context, list *libcni.NetworkConfigList) bool {
	ctx, cancel := context.WithTimeout(ctx, operationLimit)
	defer cancel()
	done, err := n.lockExclusive(ctx)
	if err != nil {
		n.log.Warn("CNI GC did not run", "network", list.Name, "err", err)
		return false
	}
	defer done()
	valid, err := n.allAttachments()
	if err != nil {
		// and nothing is collected
		n.log.Error("CNI GC did not run: list attachments of this machine's clusters", "err", err)
		return false
	}
	e := &executor{slots: n.slots, limit: pluginLimit}
	if err := n.plugins(e).GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid}); err != nil &&
		ctx.Err() == nil {
		n.log.Warn("CNI GC failed", "network", list.Name, "err", withCode(err))
	}
	return true
}

// lockShared blocks GC of all clusters on this machine until done is called. It waits for one that runs.
func (n *Network) lockShared() (done func(), err error) {
	file, err := n.openClustersDir()
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(file.Fd()), unix.LOCK_SH) // a descriptor fits
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("wait for CNI GC: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

// lockExclusive waits until no cluster attaches or detaches a sandbox, and blocks that until done is called.
func (n *Network) lockExclusive(ctx context.Context) (done func(), err error) {
	f, err := n.openClustersDir()
	if err != nil {
		return nil, err
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // a descriptor fits
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if pause(ctx, wait); ctx.Err() != nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("wait until no sandbox is attached: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// openClustersDir opens the clusters' directory, and writes this cluster's file in it.
func (n *Network) openClustersDir() (*os.File, error) {
	if err := os.MkdirAll(n.clustersDir(), 0o700); err != nil {
		return nil, err
	}
	mine := filepath.Join(n.clustersDir(), n.cfg.ID)
	text := n.cfg.Dir + "\n"
	if b, err := os.ReadFile(mine); err != nil || string(b) != text {
		if err := os.WriteFile(mine, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return os.Open(n.clustersDir())
}

// clustersDir holds one file for each cluster on this machine, with the path of its attachments.
func (n *Network) clustersDir() string { return filepath.Join(n.cfg.RunDir, "cni") }

// allAttachments returns the attachments of all clusters on this machine.
func (n *Network) allAttachments() ([]types.GCAttachment, error) {
	entries, err := os.ReadDir(n.clustersDir())
	if err != nil {
		return nil, err
	}
	var out []types.GCAttachment
	for _, e := range entries {
		dir, err := os.ReadFile(filepath.Join(n.clustersDir(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just deleted
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

// Purge detaches every sandbox and deletes the directory. Shared resources of plugins, such as a bridge, stay.
func (n *Network) Purge(ctx context.Context) error {
	var errs []error
	for _, id := range n.Attached() {
		errs = append(errs, n.Detach(ctx, id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(n.clustersDir(), n.cfg.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(n.cfg.Dir)
}

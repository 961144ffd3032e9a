// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// collect has plugins that can (CNI 1.1) give back what they hold for sandboxes that nobody has: once, as a crash of a plugin or of the
// machine leaves it. Clusters of this machine may share a network, so what any of them has is kept.
func (n *Network) collect(ctx context.Context, list *libcni.NetworkConfigList) {
	valid, err := n.allAttachments()
	if err != nil {
		n.log.Error("sandboxes of this machine's clusters", "err", err) // and nothing is collected
		return
	}
	e := &executor{slots: n.slots, limit: pluginLimit}
	if err := n.plugins(e).GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid}); err != nil && ctx.Err() == nil {
		n.log.Warn("plugins give back what ended sandboxes had", "network", list.Name, "err", explain(err))
	}
}

// users is where the clusters of this machine say where their attachments are: a file for each.
func (n *Network) users() string { return filepath.Join(n.cfg.RunDir, "cni") }

// allAttachments are those of all clusters of this machine.
func (n *Network) allAttachments() ([]types.GCAttachment, error) {
	if err := os.MkdirAll(n.users(), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(n.users(), n.cfg.ID), []byte(n.cfg.Dir+"\n"), 0o600); err != nil {
		return nil, err
	}
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

// Purge detaches every sandbox and forgets that there was a network. What plugins have made for the machine, such as a bridge, is theirs and stays.
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

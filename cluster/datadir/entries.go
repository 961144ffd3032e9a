// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"keelson/lib/logrotate"
)

// Entries of a data directory that several packages read or write.
const (
	// PodCIDRFile, in a node's data directory, stores the node's pod CIDRs.
	PodCIDRFile = "pod-cidr"
	// ServiceRangeFile, in the data directory, stores the service CIDRs of the first start. They stay
	// (docs/decisions/0114) when the flag changes, and with them the addresses of the API server and the DNS server.
	ServiceRangeFile = "service-cidr"
	// MigratingStore is where `keelson migrate` builds a store. A leftover there is of an interrupted migration.
	MigratingStore = "store.migrating"
	// EndpointFile stores the socket of an external runtime, so that this cluster's pods can be removed from it.
	EndpointFile = "runtime-endpoint"
	// NodeNameFile, in the data directory, stores the name of the node of the first start. Under another name the
	// kubelet would find no pods of its own and remove the running ones, and volumes of the old node would be out of
	// reach.
	NodeNameFile = "node-name"
	// WireGuardKeyFile holds the node's WireGuard private key, in the format of `wg genkey`.
	WireGuardKeyFile = "wireguard.key"
	// ServersFile keeps the API servers that an agent of this data directory has learned.
	ServersFile = "servers.json"
	// BackupState keeps the outcome of the last scheduled backup.
	BackupState = "backup-state"
	// StoreCreatedFile marks that the directory has held an embedded store. If that store is missing later, no new one
	// is created silently.
	StoreCreatedFile = "store-created"
)

// contents are the entries that Keelson creates in a data directory, and the only ones it deletes. Rotated logs have
// dates in their names.
func (d Dir) contents() []string {
	names := slices.Clone(contents)
	names = append(names, d.MigratedStores()...)
	older, _ := logrotate.List(d.Log()) // an unreadable directory has none
	for _, f := range older {
		names = append(names, filepath.Base(f.Path()))
	}
	return names
}

var contents = []string{
	"kubeconfig", "keelson.log", "keelson.log.1", "pod-cidr", ServiceRangeFile, WireGuardKeyFile,
	WireGuardKeyFile + ".new", "pki", "store", StoreCreatedFile, storeUsedFile, MigratingStore,
	"runtime", "network", "kubelet", "logs",
	"manifests", "volumes",
	"node.pid", "keelson.pid", EndpointFile, NodeNameFile, ReserveFile, reserveFiles,
	ServersFile, homeFile, BackupState,
}

// Entries are the members of contents that exist.
func (d Dir) Entries() []string {
	return slices.DeleteFunc(d.contents(), func(name string) bool { return !Exists(d.Sub(name)) })
}

// Erase deletes all entries of the cluster except keep, then the directory if it is empty.
func (d Dir) Erase(keep ...string) error {
	var errs []error
	for _, name := range d.contents() {
		if slices.Contains(keep, name) {
			continue
		}
		errs = append(errs, os.RemoveAll(d.Sub(name)))
	}
	if err := os.Remove(string(d)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) &&
		!errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

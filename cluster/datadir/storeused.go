// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"keelson/pki"
)

// storeUsedFile, in the data directory of a server, records which store holds the cluster's objects: "embedded", or
// "etcd" and the cluster ID of that etcd. The first start writes it. A start that would use another store is refused:
// it would find no objects, or old ones, and nodes delete the pods that are not among them.
const storeUsedFile = "store-used"

// storeID identifies a store; it is the content of storeUsedFile.
type storeID string

const (
	noStore storeID = "" // no server has run in the directory
	// EmbeddedStore is the store in the data directory.
	EmbeddedStore storeID = "embedded"
	// anyEtcd is an etcd whose cluster ID is not known: of a first start that did not reach it, or of a directory
	// without storeUsedFile.
	anyEtcd storeID = "etcd"
)

// EtcdStore is the etcd with a cluster ID.
func EtcdStore(cluster uint64) storeID { return storeID(fmt.Sprintf("%s %016x", anyEtcd, cluster)) }

// IsEtcd reports whether the store is an etcd.
func (id storeID) IsEtcd() bool {
	return id == anyEtcd || strings.HasPrefix(string(id), string(anyEtcd)+" ")
}

// storeWords matches every storeID that a file may hold.
var storeWords = regexp.MustCompile(`^(embedded|etcd( [0-9a-f]{16})?)$`)

// StoreUsed returns the store that holds the objects of this directory's cluster. A directory of an older version has
// no record; what it holds says which store it has used.
func (d Dir) StoreUsed() (storeID, error) {
	b, err := os.ReadFile(d.Sub(storeUsedFile))
	id := storeID(strings.TrimSuffix(string(b), "\n"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.storeBefore(), nil
	case err != nil:
		return noStore, fmt.Errorf("read which store the cluster uses: %w", err)
	case !storeWords.MatchString(string(id)):
		return noStore, fmt.Errorf("%s is damaged: write \"embedded\" into it if the objects are in %s, else \"etcd\"",
			d.Sub(storeUsedFile), d.Sub("store"))
	}
	return id, nil
}

// storeBefore is StoreUsed by the other entries of the directory.
func (d Dir) storeBefore() storeID {
	switch {
	case Exists(d.Sub("store")), Exists(d.Sub(StoreCreatedFile)):
		return EmbeddedStore
	case Exists(d.Kubeconfig()):
		return anyEtcd
	}
	return noStore
}

// UseStore records the store that holds the objects.
func (d Dir) UseStore(id storeID) error {
	if now, err := os.ReadFile(d.Sub(storeUsedFile)); err == nil && string(now) == string(id)+"\n" {
		return nil
	}
	if err := errors.Join(pki.WriteFile(d.Sub(storeUsedFile), []byte(id+"\n"), 0o600),
		SyncDir(string(d))); err != nil {
		return fmt.Errorf("record which store the cluster uses: %w", err)
	}
	return nil
}

// KeepStoreKind returns an error unless the flags ask for the kind of store that the directory uses: an etcd, or the
// embedded one. The first start records it before it creates anything else.
func (d Dir) KeepStoreKind(etcd bool) error {
	used, err := d.StoreUsed()
	if err != nil {
		return err
	}
	switch {
	case used == noStore && etcd:
		return d.UseStore(anyEtcd)
	case used == noStore:
		return d.UseStore(EmbeddedStore)
	case used.IsEtcd() && !etcd:
		return fmt.Errorf("the objects of %s are in %s: give --etcd-servers, or bring them here by `keelson migrate "+
			"--to=embedded` (docs/store.md)", d, used.Text())
	case !used.IsEtcd() && etcd:
		return fmt.Errorf("the objects of %s are in its embedded store: leave out --etcd-servers, or move them by "+
			"`keelson migrate --to=etcd` (docs/store.md)", d)
	}
	return nil
}

// Text is how a sentence names an etcd.
func (id storeID) Text() string {
	if id == anyEtcd {
		return "an etcd"
	}
	return "the etcd cluster " + strings.TrimPrefix(string(id), string(anyEtcd)+" ")
}

// SameStore returns an error if the directory uses another etcd than the one that answers at servers.
func (d Dir) SameStore(servers []string, got storeID) error {
	used, err := d.StoreUsed()
	if err != nil || used == noStore || used == anyEtcd || used == got {
		return err
	}
	return fmt.Errorf("the objects of %s are in %s, but %s is %s: correct --etcd-servers, or delete %s if it was "+
		"restored from a snapshot", d, used.Text(), strings.Join(servers, ","), got.Text(), d.Sub(storeUsedFile))
}

// migratedPrefix begins the names of embedded stores whose objects were moved to etcd.
const migratedPrefix = "store.migrated-"

// PutStoreAside renames the embedded store after its objects were moved to etcd, so that no start serves what they were
// then. It returns the new name.
func (d Dir) PutStoreAside(now time.Time) (string, error) {
	name := func() string { return d.Sub(migratedPrefix + now.UTC().Format("20060102-150405")) }
	for Exists(name()) {
		now = now.Add(time.Second)
	}
	aside := name()
	err := os.Rename(d.Sub("store"), aside)
	if err == nil {
		err = os.Remove(d.Sub(StoreCreatedFile))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("put the embedded store aside: %w", err)
	}
	return aside, SyncDir(string(d))
}

// MigratedStores are the names of the stores that PutStoreAside has renamed.
func (d Dir) MigratedStores() []string {
	found, err := filepath.Glob(d.Sub(migratedPrefix + "*"))
	if err != nil {
		return nil // the directory's name has no pattern that fits: then there is nothing to delete
	}
	var names []string
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

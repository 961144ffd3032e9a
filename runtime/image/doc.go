// SPDX-License-Identifier: Apache-2.0

// Package image is the store of container images: it pulls them from registries,
// imports them from archives, unpacks each layer once into a directory that is a
// lower layer for overlayfs, and lists them. runtime/server calls it, and so do
// `keelson image` commands in their own process while a cluster runs. It never
// mounts anything and needs no daemon: all state is in the directory on disk. A node's
// process pulls by helper processes of its own program (helper.go), one for each namespace.
//
// A pull goes through its packages in this order: manifest (what does the image consist of?) from the documents that
// registry reads (or archive, for an import), then unpack, once for each layer that is not here. This package decides
// what is needed, keeps it, gives it names, and collects the rest.
//
// On disk, below Config.Dir:
//
//	images.json          the index: every image, its names and layers; replaced by rename
//	layers/<chain id>/   fs/ (the unpacked tree) and layer.json; there means complete and synced
//	leases/<id>          chain ids of the layers that a snapshot uses, one per line
//	builtin.json         the built-in image's digests, so that they need not be computed at each start
//	tmp/work-<random>/   a pull or an import: what it makes, and what layers it needs; locked by its process
//	trash/<random>       layers and leftovers that wait for deletion
//	index.lock           flock: exclusive while the index changes
//	busy.lock            flock: shared while a work or lease begins or an image gets its name, exclusive while garbage
//	                     collection chooses; always for milliseconds; no process waits for a
//	                     stopped process (lock.go)
//
// Invariants:
//  1. images.json names only layers that are complete on disk (layers are synced and
//     renamed into place first), so a reader needs no lock. The built-in image's layer, which
//     is not in images.json, is not synced: it is valid only in the boot in which it was unpacked.
//  2. A layer directory never changes once it has its name.
//  3. A layer is deleted only when no image, no lease and no work of a living process names it. So collection waits for
//     no transfer.
//  4. Bytes become visible only after their digest was checked.
//  5. Every path of a layer goes through lib/inroot: no name and no link in it leads out of the layer's directory
//     (package unpack).
//  6. Pulls and imports leave a part of the disk free (Config.ReserveBytes), so that images never fill it.
//  7. What registries and archives send is bounded before it is read, and its lists while they are read (package
//     manifest). Nothing of it leads to this node, and no error repeats it (package registry).
//  8. A tenant waits for no other tenant's transfer, lock or place, and none is held by one that sends less than its
//     pace.
package image

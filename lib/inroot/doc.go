// SPDX-License-Identifier: Apache-2.0

// Package inroot does file operations beneath a root directory to which an attacker may write at the same time: an
// image layer that is unpacked, a container's root file system, a volume, a log directory. runtime and kubelet use it.
// It never resolves a path outside the root, starts nothing, and keeps nothing but the root's descriptor.
//
// Invariants, whatever is renamed, linked or mounted inside the root while a call runs:
//
//  1. A path is cleaned as if the root were "/" ("../x" is "x"), then resolved by openat2(2) with RESOLVE_IN_ROOT and
//     RESOLVE_NO_MAGICLINKS: symbolic links, also absolute ones, resolve to paths beneath the root only. With
//     OpenBeneath a link that points out of the root is refused with EXDEV instead.
//  2. Lstat, Readlink, Mkdir, Remove, RemoveAll, Rename, Symlink, Link, Mknod, Lchown, Chmod, Utimes and the calls on
//     extended attributes never follow a link in the last component: its parent is opened as in 1, then an *at call
//     takes one name.
//  3. A file that is changed by a descriptor was first opened with O_PATH|O_NOFOLLOW and checked by that descriptor.
//  4. OpenFile opens regular files only. A FIFO, socket or device is never opened, so that nothing blocks and no driver
//     is called.
//  5. Walk and RemoveAll go from descriptor to descriptor, follow no link, and do not enter other mounts unless
//     requested. They use at most one descriptor for each of MaxDepth levels and read directories in batches.
//
// There is no protection against hard links from the root to files outside.
package inroot

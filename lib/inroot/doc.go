// SPDX-License-Identifier: Apache-2.0

// Package inroot works on paths beneath a directory that somebody hostile may write to at the same time: an image layer being
// unpacked, a container's root file system, a volume, a log directory. runtime and kubelet call it. It never resolves a path by
// name outside the root, starts nothing and keeps nothing but the root's descriptor.
//
// Invariants, whatever is renamed, linked or mounted inside the root while a call runs:
//
//  1. A path is cleaned as if the root were "/" ("../x" is "x"), then resolved by openat2(2) with RESOLVE_IN_ROOT and
//     RESOLVE_NO_MAGICLINKS: symbolic links, absolute ones too, lead to places beneath the root only. With OpenBeneath a link that
//     points out of the root is refused with EXDEV instead.
//  2. Lstat, Readlink, Mkdir, Remove, RemoveAll, Rename, Symlink, Link, Mknod, Lchown, Chmod, Utimes and the calls on extended
//     attributes never follow a link in the last component: its parent is opened as in 1, then an *at call takes one name.
//  3. What is changed through a descriptor was opened with O_PATH|O_NOFOLLOW first and looked at through it.
//  4. OpenFile opens regular files alone. A FIFO, socket or device is never opened, so that nothing blocks and no driver acts.
//  5. Walk and RemoveAll go from descriptor to descriptor, follow no link, and leave other mounts alone unless asked. They hold at
//     most one descriptor for each of MaxDepth levels and read directories piecemeal.
//
// A file that has a second name outside the root (a hard link) is the same file: what may be linked into the root decides that.
package inroot

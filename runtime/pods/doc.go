// SPDX-License-Identifier: Apache-2.0

// Package pods is what the container runtime knows of its pod sandboxes and containers: their records on disk, the
// same records in memory, and the table in which CRI verbs find them. The packages sandbox, container, stream and stats
// work on it, and runtime/server makes the one Table of a runtime. It makes, changes and ends nothing in the kernel.
//
// Invariants:
//  1. A record is written before anything is made in the kernel for it, and its directory is deleted after all of that
//     is removed. So the next start finds what a crash left incomplete (Complete is false), and removes it.
//  2. Memory follows the disk: Update writes the record, with a copy of it, before it changes the one in memory. The
//     end of a container is the exception, because it has happened whether it can be written or not.
//  3. The form of records never changes in a way that an earlier or later version of the runtime cannot read: upgrades
//     keep containers.
//
// Locks, in the order in which they are taken:
//  1. Sandbox.Op. Stop and Remove hold it for writing; calls that need the sandbox to stay hold it for reading.
//  2. Container.Op. Start, Update and Remove hold it; of two calls the later one sees what the earlier one did.
//  3. Table.mu guards the maps of the table. It is never held while something is waited for.
//  4. Sandbox.mu, Container.mu guard one record, in memory and on disk. They are taken last, and held while a file is
//     written.
//
// Rate and Disk have locks of their own. Disk's is held while a file tree is measured, and with none of these held.
package pods

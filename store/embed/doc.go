// SPDX-License-Identifier: Apache-2.0

// Package embed is the store of a single-server cluster: store.Store on Pebble (the engine), in a directory of its own.
// cluster opens it, backs it up and migrates it; the API server talks to it through the contract only. While no one
// writes it writes nothing to the disk (opening and closing write a little), and it never claims a write that the disk
// did not confirm.
//
// A write goes: write.go -> the queue of commit.go -> the committer, which decides it on the key's latest version ->
// one batch, one sync -> last-revision (lastrevision.go) -> publish: readers and watchers (watch.go) see it -> the
// answer.
//
// How it works, with the invariants the code cites:
//
//  1. Each write becomes two records in one Pebble batch: the value under (key, revision) and a log entry under the
//     revision (layout.go). Old revisions stay readable until compaction (compact.go).
//  2. One goroutine, the committer, decides all writes: it takes those that are waiting, puts them into one batch,
//     waits for one sync and publishes them together. So revisions are gapless and in the order of the write-ahead log,
//     and no caller ever waits inside the engine.
//  3. No one sees a revision above Store.durable: not a reader, not a watcher, and not a writer that was refused
//     because of it.
//  4. The engine never sees an error of the disk's write side (retryfs.go). While an operation fails the store is
//     failing: writes are refused, reads go on, and when the operation succeeds what was stalled becomes durable in its
//     order. After a failed sync the store is failed until it is opened again: nothing that was not durable before is
//     ever confirmed.
//  5. Open refuses a store that holds less than it acknowledged (loss.go). Two files next to the engine's say so:
//     last-revision, and clean-stop, which Close leaves and Open removes. damage.go looks for damage that the engine
//     would take for the end of its log.
//
// Two compactions must not be confused: compact.go removes old revisions, as etcd's does; Pebble's own merges its files
// (compactionscheduler.go).
package embed

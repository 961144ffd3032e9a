// SPDX-License-Identifier: Apache-2.0

// Package stream is how clients run commands in containers, attach to them and reach the ports of pods: ExecSync at
// once, and URLs, each valid once, behind which it serves the streams. runtime/server calls it for the CRI verbs. It
// starts and ends no container, and keeps no record: a stream ends with its client, its command or this process.
//
// Streams never cross the node's network unencrypted, where a pod could intercept them. The kubelet in this process
// gets them over socket pairs, clients of the CRI socket over TLS on the loopback. Each URL is valid once and cannot be
// guessed.
//
// Invariants:
//  1. Data does not pass through the supervisor: a command gets its own ends of pipes, or of a terminal.
//  2. Every descriptor and goroutine ends with its stream. Processes that a command left behind may hold its streams
//     open, so the output of an ended command is waited for with a limit.
//
// There is no lock but that of a collector's buffer: a stream belongs to the goroutines of its connection.
package stream

// SPDX-License-Identifier: Apache-2.0

// Package cni attaches pods by CNI plugins (https://www.cni.dev/docs/spec) instead of the built-in pod network. cluster
// makes a Network and passes it to the runtime. It runs the plugins that a configuration names, from the configured
// directories only. It never makes a link, route or rule itself, and knows no Kubernetes objects.
//
// Invariants:
//  1. An attachment is written to disk, with its configuration, before the first plugin runs ADD, and deleted after the
//     last plugin has completed DEL. So after a crash, a changed configuration or a reboot, DEL runs the plugins that
//     made the attachment.
//  2. Operations of one sandbox do not overlap, and no operation of any sandbox on this machine overlaps with GC.
//  3. Only the first configuration by name is used: if it is invalid, the next one is not tried.
//  4. A plugin gets CNI's environment variables and PATH only; its time and output are limited; it ends with this
//     process.
//  5. There is no polling: files are watched. Only STATUS is repeated, for a plugin that is not ready.
package cni

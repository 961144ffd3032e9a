// SPDX-License-Identifier: Apache-2.0

// Package cni attaches pods by CNI plugins (https://www.cni.dev/docs/spec), in the place of the built-in pod network. cluster makes a
// Network and hands it to the runtime. It runs the plugins that a configuration names, from the configured directories only; it makes
// no link, route or rule itself, and knows no Kubernetes objects.
//
// Invariants:
//  1. An attachment is on disk, with the configuration it is made by, before the first plugin hears of it, and leaves the disk after the
//     last plugin has said that nothing of it is left. So whatever a crash, a changed configuration or a reboot leaves is deleted by the
//     plugins that made it.
//  2. Of one sandbox no two operations run at the same time, and none of any sandbox of this machine while plugins collect (GC).
//  3. The first configuration by name counts, or none: one that is wrong is not passed over in favour of the next.
//  4. A plugin gets an environment of CNI's variables and PATH, a limited time, and is read up to a limit. It ends with this process.
//  5. Nothing is asked again and again: files are watched; only a plugin whose STATUS says no is asked later.
package cni

// SPDX-License-Identifier: Apache-2.0

// Package core knows the small kinds of the core group: namespaces, nodes,
// config maps, secrets, service accounts, quotas, events. The large ones have
// packages of their own below: pod, with podspec for what pods share with the
// templates of other groups; service, with endpoints; volume. Each <kind>.go
// returns the kind's description for the server's registry. Nothing here does
// I/O, and nothing looks at any object but those it is given.
//
// The rules, words and field paths are those of Kubernetes v1.37 with its
// default feature gates.
package core

// SPDX-License-Identifier: Apache-2.0

// Package registry reads images from registries and their mirrors: it goes from a name to the plan of an image and to
// the connection that the image's layers come from. runtime/image calls it. It knows no disk.
//
// A registry is a stranger, and so are the hosts that it names:
//
//  1. A host that a registry names, by a redirect or a realm, is never on this node (door.go).
//  2. An error repeats nothing of an answer (answer.go).
//  3. Answers are bounded in size and time; a blob that comes too slowly is given up (pace.go).
//  4. A pull secret goes to the registry that it is for, and to no mirror that it does not name. A login of the
//     settings goes to the host that it is for.
package registry

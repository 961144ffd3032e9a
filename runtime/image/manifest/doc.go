// SPDX-License-Identifier: Apache-2.0

// Package manifest is what an image says of itself: its name, its manifest or index, its config, and the platforms that
// these are for. From them it makes a Plan: which layers the image has, in which order. Packages registry and archive
// bring the documents, runtime/image carries the plans out. It never opens a file or a connection, and bounds what it
// reads while it reads it.
package manifest

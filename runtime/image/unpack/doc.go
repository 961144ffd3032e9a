// SPDX-License-Identifier: Apache-2.0

// Package unpack makes of a layer's tar, plain or compressed, a directory that is a lower layer for overlayfs. The tar
// comes from a stranger: every path is resolved beneath the directory (lib/inroot), whatever its names and links say,
// and bytes, entries, memory and space on disk are bounded. runtime/image calls it. It knows no registry and no store.
package unpack

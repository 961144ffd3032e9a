// SPDX-License-Identifier: Apache-2.0

// Package test holds the end-to-end scripts: the real binary, real kubectl, real
// containers. Each script has a cluster of its own in a directory of its own, and
// must leave nothing in the kernel behind. They need root; `make test` builds the
// binary first.
package test

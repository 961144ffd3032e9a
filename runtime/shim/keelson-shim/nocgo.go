// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

// Without cgo keelson-shim only prints an error. This file exists so that go vet and other tools find a package without
// cgo, too.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "keelson-shim was built without cgo, which it needs: build it with make")
	os.Exit(2)
}

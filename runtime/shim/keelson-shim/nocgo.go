// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

// keelson-shim cannot work without cgo: this program only says so. Without it tools that look at every package would stumble over one that
// has nothing for them.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "keelson-shim was built without cgo, which it needs: build it with make")
	os.Exit(2)
}

// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package main

import (
	"fmt"
	"os"
)

// Without this file tools that look at every package would stumble over one that has nothing for them.
func main() {
	fmt.Fprintln(os.Stderr, "keelson-shim was built without cgo, which it needs: build it with make")
	os.Exit(2)
}

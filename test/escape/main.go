// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command escape runs in a container and tries to leave it. The escape test puts it into an image, runs it in pods of
// several security profiles, and compares what each attempt came to with a table. It harms nothing: a file that must
// not be writable is opened for writing and closed again.
//
// Its output is one JSON object: name of the attempt to how it ended, "refused: why" or "open: what was reached".
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// attempt returns what it reached; an error says that the container held, and why.
type attempt struct {
	name string
	try  func(marker string) (string, error)
}

// attempts is every way out that is tried. marker is the path of a file that exists on the host alone; ways that lead
// to files of the host count as open when its content can be read through them.
var attempts = slices.Concat(kernelFiles, fileSystems, processes, systemCalls, devices, networks)

func main() {
	if len(os.Args) > 1 && os.Args[1] == inNamespaces { // the child of "userns mount"
		os.Exit(childInNamespaces())
	}
	if len(os.Args) == 4 && os.Args[1] == "symlink" { // prepares a volume for the next container
		if err := os.Symlink(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	marker := os.Getenv("ESCAPE_MARKER")
	results := map[string]string{}
	for _, a := range attempts {
		what, err := a.try(marker)
		if err != nil {
			results[a.name] = "refused: " + err.Error()
			continue
		}
		results[a.name] = "open: " + what
	}
	if err := json.NewEncoder(os.Stdout).Encode(results); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(os.Args) > 1 && os.Args[1] == "stay" { // until the test has tried the same through exec
		time.Sleep(10 * time.Minute)
	}
}

// reads returns an error unless one of the paths leads to the marker's content.
func reads(paths ...string) (string, error) {
	var last error
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			last = err
			continue
		}
		if strings.Contains(string(b), markerContent) {
			return p, nil
		}
		last = fmt.Errorf("%s is another file", p)
	}
	return "", last
}

// markerContent is what the test writes into the marker.
const markerContent = "only the host has this"

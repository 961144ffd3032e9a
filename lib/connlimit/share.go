// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"fmt"
	"syscall"
)

// The shares of the servers in the process's open files. The rest is for the store, containers, outgoing connections
// and the kubelet's files.
const (
	mostAPI, mostOther   = 20000, 2000
	apiPart, otherPart   = 5, 10 // API: two fifths; others: a tenth
	apiPieces            = 2
	fewestFiles, ofFiles = 256, "raise it, e.g. with LimitNOFILE= or ulimit -n"
)

// Shares holds the connection limits of the servers of a process.
type Shares struct {
	// API is for the API server, Other for each other server, Streams for exec, logs and proxied requests, each of
	// which needs another connection to a backend.
	API, Other, Streams int
}

// ForOpenFiles computes the shares of a limit on open files (RLIMIT_NOFILE).
func ForOpenFiles(limit uint64) Shares {
	n := int(min(limit, 1<<20)) // bounded
	return Shares{
		API:   min(n*apiPieces/apiPart, mostAPI),
		Other: min(n/otherPart, mostOther),
		Streams: min(n/otherPart,
			mostOther),
	}
}

// OwnShares computes the shares of this process's limit. The Go runtime has raised the soft limit to the hard one.
func OwnShares() (Shares, error) {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return Shares{}, fmt.Errorf("read limit of open files: %w", err)
	}
	if lim.Cur < fewestFiles {
		return Shares{}, fmt.Errorf("this process may open %d files, and needs %d: %s", lim.Cur, fewestFiles, ofFiles)
	}
	return ForOpenFiles(lim.Cur), nil
}

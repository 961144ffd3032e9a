// SPDX-License-Identifier: Apache-2.0

// Command hello is the program of the image keelson.local/hello. By itself it
// serves HTTP on $PORT (80) and tells what it sees; called by another name, or
// with a name as its first argument, it is a small shell and the handful of tools
// that one needs inside a container. It is built static and stripped, embedded
// by runtime/builtin, and never part of the main program. It does without
// net/http: half the size, and half the memory, fifty times on one node.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
)

// stdio is what a tool reads and writes; the shell redirects it.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// tool is one applet. args[0] is its name; the result is its exit code.
type tool func(args []string, io stdio) int

func main() {
	std := stdio{os.Stdin, os.Stdout, os.Stderr}
	name, args := filepath.Base(os.Args[0]), os.Args
	if name == "hello" && len(os.Args) > 1 {
		name, args = filepath.Base(os.Args[1]), os.Args[1:]
	}
	switch name {
	case "hello", "serve":
		os.Exit(serve(std))
	case "sh", "ash", "bash", "-sh":
		os.Exit(shell(args, std, exitOnTerm()))
	}
	t, ok := tools()[name]
	if !ok {
		fmt.Fprintf(std.err, "hello: %s: not one of my names; I know serve sh%s\n", name, toolNames())
		os.Exit(127)
	}
	exitOnTerm()
	os.Exit(t(args, std))
}

// exitOnTerm makes SIGTERM work for the first process of a container too: the kernel does not kill that one by default. It returns what
// undoes it; nil: it did nothing.
func exitOnTerm() (undo func()) {
	if os.Getpid() != 1 {
		return nil
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	go func() { // ends with the process, or by undo
		if _, ok := <-c; ok {
			os.Exit(128 + int(syscall.SIGTERM))
		}
	}()
	return func() {
		signal.Stop(c)
		close(c)
	}
}

func complain(io stdio, who string, err error) int {
	fmt.Fprintf(io.err, "%s: %v\n", who, err)
	return 1
}

func atoi(s string, otherwise int) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return otherwise
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

// Command hello is the program of the image keelson.local/hello. By default it
// serves HTTP on $PORT (80) and describes its pod; called by another name, or
// with a name as its first argument, it is a shell or one of the tools that are
// useful in a container, with the options that are common. It is built static and
// stripped, has less than 7 MB, and is embedded by runtime/embedded; the main
// program never imports it. It does not use net/http, which would double its size
// and memory, nor TLS.
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

// stdio holds the standard streams of a tool; the shell redirects them.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// tool is one applet. args[0] is its name; the result is its exit code.
type tool func(args []string, io stdio) int

func main() {
	std := stdio{os.Stdin, os.Stdout, os.Stderr}
	name := filepath.Base(os.Args[0])
	args := os.Args
	if name == "hello" && len(os.Args) > 1 {
		name = filepath.Base(os.Args[1])
		args = os.Args[1:]
	}
	if name == "hello" && wantsShell(os.Stdin) {
		name = "sh"
	}
	switch name {
	case "hello", "serve":
		os.Exit(serve(std))
	case "sh", "ash", "bash", "-sh":
		os.Exit(shell(args, std, exitOnTerm()))
	}
	t, ok := tools()[name]
	if !ok {
		fmt.Fprintf(std.err, "hello: %s: unknown applet; known: serve sh%s\n", name, toolNames())
		os.Exit(127)
	}
	exitOnTerm()
	os.Exit(t(args, std))
}

// wantsShell reports whether the program, called without a command, is a shell and not a server: on a terminal
// (kubectl run -it, kubectl debug -it), and in a container that debugs a node, whose port 80 is the node's.
func wantsShell(in *os.File) bool {
	if isTerminal(in) {
		return true
	}
	_, err := os.Stat("/host/proc") // where kubectl debug mounts the node's files
	return err == nil
}

// exitOnTerm makes SIGTERM end the process also as the first process of a container, which the kernel does not kill by
// default. undo is nil if it did nothing.
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

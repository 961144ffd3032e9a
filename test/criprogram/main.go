// SPDX-License-Identifier: Apache-2.0

// Command criprogram is what runs in the images that TestCRITest makes for critest, in the place of the programs in the
// public ones. Its name says which: nginx and httpd serve a page on port 80 or $PORT, nnp prints its effective user id,
// and pgrep and ipcs are what a busybox may lack.
package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(filepath.Base(os.Args[0]), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// master is how nginx calls its first process.
const master = "nginx: master process nginx"

func run(name string, args []string) error {
	switch name {
	case "nnp":
		_, err := fmt.Fprintf(os.Stdout, "Effective uid: %d\n", os.Geteuid())
		return err
	case "pgrep":
		return pgrep(args)
	case "ipcs":
		b, err := os.ReadFile("/proc/sysvipc/shm")
		if err == nil {
			_, err = os.Stdout.Write(b)
		}
		return err
	case "nginx":
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return syscall.Exec(self, []string{master}, os.Environ())
	case master:
		return serve("nginx")
	}
	return serve(name)
}

// pgrep prints the ids of the processes that have the name.
func pgrep(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: pgrep NAME")
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	for _, file := range names {
		b, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(b)) == args[0] { // else it has ended
			if _, err := fmt.Fprintln(os.Stdout, filepath.Base(filepath.Dir(file))); err != nil {
				return err
			}
		}
	}
	return nil
}

func serve(name string) error {
	pid := fmt.Appendf(nil, "%d\n", os.Getpid())
	if err := os.WriteFile("/var/run/"+name+".pid", pid, 0o600); err != nil {
		return err
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "80"
	}
	if _, err := fmt.Fprintf(os.Stdout, "%s serves on port %s\n", name, port); err != nil {
		return err
	}
	s := &http.Server{
		Addr:              ":" + port,
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintln(w, "It works!") // the client may have left
		}),
	}
	return s.ListenAndServe()
}

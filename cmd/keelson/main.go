// SPDX-License-Identifier: Apache-2.0

// Command keelson is a whole Kubernetes cluster in one program. This package only turns arguments into an exit code.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"keelson/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(cli.Run(ctx, os.Args, cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

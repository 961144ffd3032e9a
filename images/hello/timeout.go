// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/expand"
)

var timeoutSyntax = optionSyntax{
	letters: "k:s:",
	usage:   "timeout [-s SIGNAL] [-k DURATION] DURATION COMMAND [ARG]...",
	early:   true,
}

// timedOut is the exit code of a command that timeout has ended.
const timedOut = 124

// timeout runs a command, and ends it by SIGTERM (-s: another signal) when its time is over; -k kills it that much
// later.
func timeout(args []string, std stdio) int {
	opts, rest, err := timeoutSyntax.parse(args)
	if err == nil && len(rest) < 2 {
		err = timeoutSyntax.wantUsage()
	}
	signal := syscall.SIGTERM
	if name := opts['s']; err == nil && len(name) > 0 {
		var ok bool
		if signal, ok = signalOf(name[0]); !ok {
			err = fmt.Errorf("%s: unknown signal", name[0])
		}
	}
	var limit, kill time.Duration
	if err == nil {
		limit, err = duration(rest[0])
	}
	if k := opts['k']; err == nil && len(k) > 0 {
		kill, err = duration(k[0])
	}
	if err != nil {
		complain(std, "timeout", err)
		return 125
	}
	path, argv0, err := lookup(".", expand.ListEnviron(os.Environ()...), rest[1])
	if err != nil {
		complain(std, "timeout", err)
		return 127
	}
	ctx := context.Background()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = append([]string{argv0}, rest[2:]...)
	cmd.Stdin = std.in
	cmd.Stdout = std.out
	cmd.Stderr = std.err
	cmd.Cancel = func() error { return cmd.Process.Signal(signal) }
	cmd.WaitDelay = kill
	err = cmd.Run()
	if ctx.Err() != nil {
		return timedOut
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal())
		}
		return exit.ExitCode()
	}
	if err != nil {
		complain(std, "timeout", err)
		return 126
	}
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// stty supports "stty size" only, which prints the rows and columns of the terminal on standard input.
func stty(args []string, std stdio) int {
	if len(args) != 2 || args[1] != "size" {
		return complain(std, "stty", errors.New("usage: stty size"))
	}
	in, ok := std.in.(*os.File)
	if !ok {
		return complain(std, "stty", errors.New("standard input is not a terminal"))
	}
	size, err := unix.IoctlGetWinsize(int(in.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return complain(std, "stty", fmt.Errorf("standard input: %w", err))
	}
	return write(std, "stty", fmt.Sprintf("%d %d\n", size.Row, size.Col))
}

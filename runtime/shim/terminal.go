// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ReceiveTerminal receives the terminal of an exec over one end of a socket pair; the other end was sent with the
// request.
func ReceiveTerminal(sock *os.File) (*os.File, error) {
	name := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(sock.Fd()), name, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	files, err := parseRights(oob[:n])
	if err != nil || len(files) != 1 {
		CloseAll(files)
		return nil, fmt.Errorf("receive terminal: %d descriptors came (%w)", len(files), err)
	}
	fd := int(files[0].Fd())
	// A non-blocking file uses Go's poller, so that Close interrupts a Read.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	CloseAll(files)
	if err != nil {
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	if err := unix.SetNonblock(dup, true); err != nil {
		_ = unix.Close(dup) // nothing was written
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	return os.NewFile(uintptr(dup), "terminal"), nil
}

// SetSize sets a terminal's size in characters.
func SetSize(tty *os.File, width, height uint16) error {
	rc, err := tty.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	var ierr error
	err = rc.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	})
	if err == nil {
		err = ierr
	}
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}

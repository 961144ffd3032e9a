// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// loopDevice is the command "loopdevice NAME BYTES": a block device, whose path is $NAME. The kernel takes it away
// after the script.
func loopDevice(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: loopdevice NAME BYTES")
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	file, err := os.OpenFile(filepath.Join(ts.Getenv("WORK"), args[0]+".img"), os.O_RDWR|os.O_CREATE, 0o600)
	ts.Check(err)
	defer func() { _ = file.Close() }() // the device has it
	ts.Check(file.Truncate(size))
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	ts.Check(err)
	defer func() { _ = control.Close() }() // nothing was written
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		ts.Check(err)
		path := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0) // of the kernel's number
		ts.Check(err)
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{
			Fd:   uint32(file.Fd()),
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}, // a descriptor
		})
		if errors.Is(err, unix.EBUSY) {
			_ = dev.Close() // somebody was faster
			continue
		}
		ts.Check(err)
		ts.Defer(func() { _ = dev.Close() }) // with the last descriptor the device goes
		ts.Setenv(args[0], path)
		return
	}
}

// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// startLimit bounds the start of a supervisor and its upgrade.
const startLimit = 20 * time.Second

// Ensure returns a client of the supervisor of dir, which must exist. It starts the program at binary if no supervisor
// listens, and upgrades a running supervisor of another program in place. placed, which may be nil, is called with the
// process id of a new supervisor before that starts containers, so that the caller can move it to a cgroup.
func Ensure(ctx context.Context, dir, binary string, placed func(pid int) error) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	want, err := hash(binary)
	if err != nil {
		return nil, fmt.Errorf("read container shim: %w", err)
	}
	client := New(dir)
	hello, err := client.Hello(ctx)
	switch {
	case errors.Is(err, ErrDown):
		return client, start(ctx, dir, binary, placed)
	case err != nil:
		return nil, err
	case hello.Binary == want && hello.Protocol == Protocol:
		return client, nil
	}
	if err := client.Upgrade(ctx, binary); err != nil {
		return nil, fmt.Errorf("upgrade container supervisor %d: %w", hello.PID, err)
	}
	// The new program answers the next connection, or the old one if the new one could not be executed.
	if hello, err = client.Hello(ctx); err != nil {
		return nil, fmt.Errorf("container supervisor after its upgrade: %w", err)
	}
	if hello.Binary != want {
		return nil, fmt.Errorf("container supervisor %d could not execute %s; its log %s says why", hello.PID, binary,
			filepath.Join(dir, LogName))
	}
	return client, nil
}

// start runs the supervisor in its own session, so that it outlives this process, and waits until it listens.
func start(ctx context.Context, dir, binary string, placed func(pid int) error) error {
	logPath := filepath.Join(dir, LogName)
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open supervisor log: %w", err)
	}
	defer func() { _ = logFile.Close() }()
	before, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open supervisor log: %w", err)
	}
	file, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start container supervisor: %w", err)
	}
	defer func() { _ = file.Close() }()
	cmd := &exec.Cmd{
		Path:        binary,
		Args:        []string{BinaryName, "supervise", dir},
		Env:         []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir},
		Dir:         "/",
		Stdout:      w,
		Stderr:      logFile,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	_ = w.Close() // the supervisor has a copy
	if err != nil {
		return fmt.Errorf("start container supervisor: %w", err)
	}
	go func() { _ = cmd.Wait() }() // ends with the supervisor; clients see its exit as the end of its socket
	if placed != nil {
		if err := placed(cmd.Process.Pid); err != nil {
			_ = cmd.Process.Kill() // its state on disk is untouched
			return fmt.Errorf("place container supervisor: %w", err)
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Now()) })
	defer stop()
	said, err := io.ReadAll(file)
	if string(said) == "ready\n" {
		return nil
	}
	if err != nil && ctx.Err() != nil {
		_ = cmd.Process.Kill() // it never became ready
		return fmt.Errorf("start container supervisor: %w", context.Cause(ctx))
	}
	return fmt.Errorf("start container supervisor: %s", lastLine(logFile, before))
}

// lastLine returns the last line that the supervisor logged.
func lastLine(f *os.File, from int64) string {
	raw, err := io.ReadAll(io.NewSectionReader(f, from, 64<<10))
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	if err != nil || len(lines[len(lines)-1]) == 0 {
		return "it ended and logged nothing"
	}
	return strings.TrimPrefix(string(lines[len(lines)-1]), BinaryName+": ")
}

func hash(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

const (
	maxOutput  = 1 << 20  // of a plugin's stdout
	maxStderr  = 64 << 10 // of a plugin's stderr
	maxMessage = 1000     // of an error message
	// pluginPath is the PATH of plugins, for programs that they run (iptables, sysctl).
	pluginPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	busyTries  = 5 // for ETXTBSY: the plugin is being installed
	busyWait   = 200 * time.Millisecond
	killWait   = 2 * time.Second // for the output of child processes after a plugin has ended
)

// executor runs plugins for one operation, and records how long each took. It implements invoke.Exec.
type executor struct {
	version.PluginDecoder
	slots chan struct{} // limits concurrent plugins; shared by all operations
	limit time.Duration // for one plugin

	mu   sync.Mutex
	runs []PluginRun
}

// FindInPath finds a plugin in the given directories only.
func (e *executor) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin to its end.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other plugins to end: %w", context.Cause(ctx))
	}
	env, command := clean(environ)
	begin := time.Now()
	out, err := e.run(ctx, path, stdin, env)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs = append(e.runs, PluginRun{Plugin: filepath.Base(path), Command: command, Took: time.Since(begin)})
	return out, err
}

// clean returns CNI's variables of an environment, and a PATH.
func clean(environ []string) (env []string, command string) {
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "CNI_") {
			continue
		}
		env = append(env, kv)
		if c, ok := strings.CutPrefix(kv, "CNI_COMMAND="); ok {
			command = c
		}
	}
	return append(env, pluginPath), command
}

func (e *executor) run(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.limit, fmt.Errorf("it did not end in %s and was killed", e.limit))
	defer cancel()
	runtime.LockOSThread() // Pdeathsig kills the plugin when its parent thread ends
	defer runtime.UnlockOSThread()
	for try := 1; ; try++ {
		out := &bounded{max: maxOutput}
		stderr := &bounded{max: maxStderr}
		cmd := exec.CommandContext(ctx, path) // the plugin that the administrator's configuration names
		cmd.Env = env
		cmd.Stdin = bytes.NewReader(stdin)
		cmd.Stdout = out
		cmd.Stderr = stderr
		cmd.WaitDelay = killWait
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with its child processes
		err := cmd.Run()
		switch {
		case ctx.Err() != nil:
			return nil, &types.Error{Msg: context.Cause(ctx).Error(), Details: words(stderr.buf.Bytes())}
		case errors.Is(err, syscall.ETXTBSY) && try < busyTries:
			pause(ctx, busyWait)
			continue
		case out.over:
			return nil, &types.Error{Msg: fmt.Sprintf("its output is larger than %d bytes", maxOutput)}
		case err == nil, errors.Is(err, exec.ErrWaitDelay): // a child process still has its output open
			return out.buf.Bytes(), nil
		}
		return nil, pluginError(err, out.buf.Bytes(), stderr.buf.Bytes())
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// pluginError returns the error of a failed plugin, from its output.
func pluginError(err error, out, stderr []byte) error {
	var failed types.Error
	if json.Unmarshal(out, &failed) == nil && failed.Msg != "" {
		return &types.Error{Code: failed.Code, Msg: words([]byte(failed.Msg)), Details: words([]byte(failed.Details))}
	}
	for _, text := range [][]byte{out, stderr} {
		if s := words(text); s != "" {
			return &types.Error{Msg: fmt.Sprintf("%v: %s", err, s)}
		}
	}
	return &types.Error{Msg: fmt.Sprintf("%v, without a message", err)}
}

// words cleans a plugin's text: one line of limited length, without control characters.
func words(b []byte) string {
	b = b[:min(len(b), 4*maxMessage)]
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, string(b))
	clean = strings.Join(strings.Fields(clean), " ")
	if len(clean) > maxMessage {
		clean = strings.ToValidUTF8(clean[:maxMessage], "") + "..."
	}
	return clean
}

// bounded keeps the first max bytes that are written to it.
type bounded struct {
	buf  bytes.Buffer
	max  int
	over bool
}

// Write never fails, so that a plugin does not get EPIPE.
func (b *bounded) Write(p []byte) (int, error) {
	if room := b.max - b.buf.Len(); len(p) > room {
		b.over = true
		b.buf.Write(p[:room])
	} else {
		b.buf.Write(p)
	}
	return len(p), nil
}

// codes are the names of error codes in the specification.
var codes = map[uint]string{
	types.ErrIncompatibleCNIVersion:      "incompatible CNI version",
	types.ErrUnsupportedField:            "unsupported field",
	types.ErrUnknownContainer:            "unknown container",
	types.ErrInvalidEnvironmentVariables: "invalid environment variables",
	types.ErrIOFailure:                   "I/O failure",
	types.ErrDecodingFailure:             "failed to decode content",
	types.ErrInvalidNetworkConfig:        "invalid network config",
	types.ErrTryAgainLater:               "try again later",
	50:                                   "plugin not available",
	51:                                   "plugin not available, with limited connectivity",
}

// withCode adds the code to a plugin's error, whose text does not have it.
func withCode(err error) error {
	var failed *types.Error
	if !errors.As(err, &failed) || failed.Code == 0 {
		return err
	}
	if name := codes[failed.Code]; name != "" {
		return fmt.Errorf("%w (CNI error %d: %s)", err, failed.Code, name)
	}
	return fmt.Errorf("%w (CNI error %d)", err, failed.Code)
}

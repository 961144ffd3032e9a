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
	maxOutput = 1 << 20  // of a plugin's answer
	maxNoise  = 64 << 10 // of what it says besides
	maxWords  = 1000     // of an error that is passed on
	// searchPath is where plugins find the programs that they run (iptables, sysctl).
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	busyTries  = 5 // for a program that is being written
	busyWait   = 200 * time.Millisecond
	killWait   = 2 * time.Second // for the output of a plugin that has ended
)

// executor runs plugins for one operation, and notes how long each took. It implements invoke.Exec.
type executor struct {
	version.PluginDecoder
	slots chan struct{} // bounds how many plugins run at a time; shared by all
	limit time.Duration // of one plugin

	mu   sync.Mutex
	runs []PluginRun
}

// FindInPath finds a plugin in the directories, and nowhere else.
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

// clean leaves CNI's variables of an environment and gives it a PATH.
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
	return append(env, searchPath), command
}

func (e *executor) run(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.limit, fmt.Errorf("it did not end in %s and was killed", e.limit))
	defer cancel()
	runtime.LockOSThread() // the plugin dies with the thread that began it
	defer runtime.UnlockOSThread()
	for try := 1; ; try++ {
		out, noise := &bounded{max: maxOutput}, &bounded{max: maxNoise}
		cmd := exec.CommandContext(ctx, path) //nolint:gosec // the plugin that the administrator's configuration names
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = env, bytes.NewReader(stdin), out, noise, killWait
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with what it runs itself
		err := cmd.Run()
		switch {
		case ctx.Err() != nil:
			return nil, &types.Error{Msg: context.Cause(ctx).Error(), Details: words(noise.buf.Bytes())}
		case errors.Is(err, syscall.ETXTBSY) && try < busyTries:
			pause(ctx, busyWait)
			continue
		case out.over:
			return nil, &types.Error{Msg: fmt.Sprintf("it answers with more than %d bytes", maxOutput)}
		case err == nil, errors.Is(err, exec.ErrWaitDelay): // what it left running has its output still open
			return out.buf.Bytes(), nil
		}
		return nil, pluginError(err, out.buf.Bytes(), noise.buf.Bytes())
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

// pluginError is what a plugin that failed has said.
func pluginError(err error, out, noise []byte) error {
	var said types.Error
	if json.Unmarshal(out, &said) == nil && said.Msg != "" {
		return &types.Error{Code: said.Code, Msg: words([]byte(said.Msg)), Details: words([]byte(said.Details))}
	}
	for _, text := range [][]byte{out, noise} {
		if s := words(text); s != "" {
			return &types.Error{Msg: fmt.Sprintf("%v: %s", err, s)}
		}
	}
	return &types.Error{Msg: fmt.Sprintf("%v, without a word", err)}
}

// words are a foreign text in one line of bounded length, without what a terminal would obey.
func words(b []byte) string {
	b = b[:min(len(b), 4*maxWords)]
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, string(b))
	clean = strings.Join(strings.Fields(clean), " ")
	if len(clean) > maxWords {
		clean = strings.ToValidUTF8(clean[:maxWords], "") + "..."
	}
	return clean
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	buf  bytes.Buffer
	max  int
	over bool
}

// Write never fails: a plugin is not to be stopped by what it says.
func (b *bounded) Write(p []byte) (int, error) {
	if room := b.max - b.buf.Len(); len(p) > room {
		b.over = true
		b.buf.Write(p[:room])
	} else {
		b.buf.Write(p)
	}
	return len(p), nil
}

// codes are what the specification calls the codes of errors.
var codes = map[uint]string{
	types.ErrIncompatibleCNIVersion: "incompatible CNI version", types.ErrUnsupportedField: "unsupported field",
	types.ErrUnknownContainer: "unknown container", types.ErrInvalidEnvironmentVariables: "invalid environment variables",
	types.ErrIOFailure: "I/O failure", types.ErrDecodingFailure: "failed to decode content", types.ErrInvalidNetworkConfig: "invalid network config",
	types.ErrTryAgainLater: "try again later", 50: "plugin not available", 51: "plugin not available, with limited connectivity",
}

// explain adds the code of a plugin's error, which its text leaves out.
func explain(err error) error {
	var said *types.Error
	if !errors.As(err, &said) || said.Code == 0 {
		return err
	}
	if name := codes[said.Code]; name != "" {
		return fmt.Errorf("%w (CNI error %d: %s)", err, said.Code, name)
	}
	return fmt.Errorf("%w (CNI error %d)", err, said.Code)
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"keelson/cluster/datadir"
)

// upDetached starts `keelson up` in the background (new session, output to the log file), prints its progress lines and
// returns when it is ready. If it ends before, its last line becomes the error, and nothing is left running.
func upDetached(ctx context.Context, f upFlags, std Stdio) error {
	if _, err := f.config(); err != nil {
		return err
	}
	dir, err := datadir.Dir(f.dataDir).Prepare()
	if err != nil {
		return err
	}
	f.dataDir = string(dir)
	fresh := dir.Fresh() // then a failed start deletes what it created
	if err := dir.Occupied(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	file, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	defer func() { _ = file.Close() }()
	logFile, err := os.OpenFile(dir.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = logFile.Close() }()
	// The child outlives this command, so it does not get ctx.
	child := exec.CommandContext(context.WithoutCancel(ctx), self, f.childArgs()...)
	child.ExtraFiles = []*os.File{w}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	child.Dir = "/"
	child.Stdout = logFile
	child.Stderr = logFile // the log gets the trace of a crash
	err = child.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = child.Process.Signal(syscall.SIGTERM) })
	defer stop()
	ready, failure := relay(file, std.screen())
	if ready {
		return child.Process.Release()
	}
	err = child.Wait()
	if failure != "" {
		if fresh {
			_ = os.Remove(dir.Log())   // the error says everything
			_ = os.Remove(string(dir)) // fails if it holds something else
		}
		return errors.New(failure)
	}
	return endedEarly(err, dir.Log())
}

// endedEarly is the error for a background process that ended with err, before it was ready, and gave no reason.
func endedEarly(err error, log string) error {
	if err == nil {
		return errors.New("the cluster was stopped before it was ready, as `keelson down` does")
	}
	return fmt.Errorf("the cluster ended before it was ready (%w): see %s", err, log)
}

// failurePrefix starts the line in which the background process reports why it failed.
const failurePrefix = "error: "

// relay copies progress lines to out until the writer closes the pipe, after success or failure.
func relay(r io.Reader, out io.Writer) (ready bool, failure string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if f, ok := strings.CutPrefix(line, failurePrefix); ok {
			failure = f
			continue
		}
		ready = ready || strings.HasPrefix(line, "ready in ")
		_, _ = fmt.Fprintln(out, line)
	}
	return ready, failure
}

// childArgs are this command's flags as arguments of the background process.
func (f upFlags) childArgs() []string {
	args := []string{"up", "--notify-fd", "3", "--data-dir", f.dataDir, "--port", strconv.Itoa(
		f.port), "--fake-nodes", f.fakeNodes, "--fake-nodes-heartbeat", f.fakeHeartbeat.String()}
	for _, m := range f.mirrors {
		args = append(args, "--image-mirror", m)
	}
	if f.registries != "" {
		args = append(args, "--image-registries", f.registries)
	}
	args = append(args, etcdArgs(f.etcd)...)
	if f.acceptDataLoss {
		args = append(args, "--accept-data-loss")
	}
	if f.etcdListen != "" {
		args = append(args, "--etcd-listen", f.etcdListen)
	}
	if f.certificateLife != 0 {
		args = append(args, "--certificate-life", f.certificateLife.String())
	}
	if f.runtimeEndpoint != "" {
		args = append(args, "--container-runtime-endpoint", f.runtimeEndpoint)
	}
	if f.nodeName != "" {
		args = append(args, "--node-name", f.nodeName)
	}
	if f.writeKubeconfig {
		args = append(args, "--write-kubeconfig")
	}
	if f.verbose {
		args = append(args, "--verbose")
	}
	return append(args, f.roleArgs...)
}

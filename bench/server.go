// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"keelson/client"
)

// startServer runs the API server alone as a child process and waits until it is ready. Later starts use the same port.
func (e *env) startServer(ctx context.Context) error {
	port := "0"
	if e.client != nil {
		u, err := url.Parse(e.client.Config.Host)
		if err != nil {
			return err
		}
		port = u.Port()
	}
	c := exec.CommandContext(context.WithoutCancel(ctx), e.bin, "apiserver", "--port", port, "--data-dir",
		string(e.dir))
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	e.begin = time.Now()
	if err := c.Start(); err != nil {
		return fmt.Errorf("keelson apiserver: %w", err)
	}
	e.server = c
	line, err := bufio.NewReader(io.LimitReader(out, 1<<10)).ReadString('\n')
	if err != nil || !strings.Contains(line, "ready") {
		return errors.Join(fmt.Errorf("keelson apiserver says %q and not that it is ready", line), err, e.stopServer())
	}
	e.up = time.Since(e.begin)
	if e.client != nil {
		return nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", e.dir.Kubeconfig())
	if err != nil {
		return errors.Join(err, e.stopServer())
	}
	e.client, err = client.Remote(cfg, "keelson-bench")
	return err
}

// stopServer stops the process of startServer, if there is one.
func (e *env) stopServer() error {
	if e.server == nil {
		return nil
	}
	c := e.server
	e.server = nil
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop keelson apiserver: %w", err)
	}
	late := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() }) // it may have ended just now
	defer late.Stop()
	if err := c.Wait(); err != nil {
		return fmt.Errorf("keelson apiserver: %w", err)
	}
	return nil
}

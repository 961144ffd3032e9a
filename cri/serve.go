// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Serve serves s on a unix socket (mode 0600), for crictl, critest and other kubelets. It calls ready once it listens,
// and returns when ctx is done and every call has ended. A stale socket file is replaced; one that is in use is an
// error.
func Serve(ctx context.Context, s Server, socket string, ready func()) error {
	l, err := listen(ctx, socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	runtimeapi.RegisterRuntimeServiceServer(server, s)
	runtimeapi.RegisterImageServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends when the server is stopped below
	ready()
	select {
	case err = <-served:
		return fmt.Errorf("serve cri on %s: %w", socket, err)
	case <-ctx.Done():
	}
	// Streams of events do not end by themselves, so the grace period is short.
	hard := time.AfterFunc(time.Second, server.Stop)
	server.GracefulStop()
	hard.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve cri on %s: %w", socket, err)
	}
	return nil
}

func listen(ctx context.Context, socket string) (net.Listener, error) {
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", socket); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("listen on %s: another runtime serves it", socket)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(socket); err != nil {
			return nil, fmt.Errorf("remove stale socket: %w", err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("restrict socket: %w", err)
	}
	return l, nil
}

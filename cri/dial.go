// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage bounds one CRI message. A response of ExecSync may have 16 MB for each of two streams.
const maxMessage = 64 << 20

// Dial connects to a runtime's socket ("unix:///run/containerd/containerd.sock", or a path) and calls Version. It waits
// for a socket that is not ready until ctx is done. Calls on the Client have no time limit except that of their
// context; after a restart of the runtime the Client reconnects within a second.
func Dial(ctx context.Context, endpoint string) (Client, error) {
	target, err := dialTarget(endpoint)
	if err != nil {
		return Client{}, err
	}
	retry := backoff.Config{
		BaseDelay:  50 * time.Millisecond,
		Multiplier: 1.6,
		Jitter:     0.2,
		MaxDelay:   time.Second,
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // containerd refuses the socket's path as an authority
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return Client{}, fmt.Errorf("dial container runtime %s: %w", endpoint, err)
	}
	c := Client{
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Image: runtimeapi.NewImageServiceClient(
			conn),
		Close: conn.Close,
	}
	if _, err := c.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		_ = conn.Close() // err is returned
		return Client{}, fmt.Errorf("ask container runtime %s for its version: %w", endpoint, err)
	}
	return c, nil
}

func dialTarget(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("container runtime endpoint %q: want unix:// and an absolute path", endpoint)
	}
	return "unix://" + path, nil
}

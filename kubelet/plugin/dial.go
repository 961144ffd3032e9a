// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"keelson/lib/inroot"
)

// maxMessage limits the responses of a plugin.
const maxMessage = 1 << 20

// Dial returns a connection to the socket at rel within dir. It connects at the first call, and reconnects. The path is
// resolved beneath dir at every attempt, whatever its length and its symbolic links.
func Dial(dir, rel string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///plugin", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx, dir, rel) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  50 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   time.Second,
			},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithMaxHeaderListSize(64 << 10),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
	}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", rel, err)
	}
	return conn, nil
}

// connect opens the socket beneath dir, and connects to the opened file.
func connect(ctx context.Context, dir, rel string) (net.Conn, error) {
	root, err := inroot.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // O_PATH
	file, err := root.OpenPath(rel)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // O_PATH
	i, err := inroot.StatFile(file)
	if err != nil {
		return nil, err
	}
	if i.Type() != unix.S_IFSOCK {
		return nil, errors.New(rel + " is not a socket")
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
}

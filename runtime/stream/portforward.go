// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
)

// PortForward connects the stream to a port on the pod's loopback interface.
func (e ends) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	sb, err := e.s.table.Sandbox(id)
	if err != nil {
		return err
	}
	rec := sb.Record()
	if !rec.Ready {
		return fault.FailedPrecondition("port-forward to pod sandbox %s: it is not ready", sb.ID)
	}
	var conn net.Conn
	dial := func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		for _, host := range []string{"127.0.0.1", "::1"} {
			// Dialling an address does no lookup, so it stays on this thread, which is in the pod's network namespace.
			if conn, err = d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port)))); err == nil {
				return nil
			}
		}
		return fmt.Errorf("connect to port %d inside the pod: %w", port, err)
	}
	if rec.Options().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		err = dial()
	} else {
		err = linux.InNetwork(sb.NS(linux.NetworkNamespace), dial)
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	up := make(chan struct{})
	go func() { // ends with the client's half, or when conn is closed
		defer close(up)
		_, _ = io.Copy(conn, stream)
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.CloseWrite() // the pod may have closed it
		}
	}()
	down := make(chan struct{})
	go func() { // ends with the pod's half
		defer close(down)
		_, _ = io.Copy(stream, conn)
	}()
	select {
	case <-down:
	case <-ctx.Done():
	}
	return nil
}

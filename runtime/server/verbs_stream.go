// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecSync runs a command in a container and returns its output. After the timeout the command is killed.
func (s *Server) ExecSync(
	ctx context.Context, r *runtimeapi.ExecSyncRequest,
) (*runtimeapi.ExecSyncResponse, error) {
	return s.streams.ExecSync(ctx, r)
}

// Exec returns a URL, valid once, for the streams of an interactive exec.
func (s *Server) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return s.streams.Exec(r)
}

// Attach returns a URL, valid once, for the streams of a running container.
func (s *Server) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return s.streams.Attach(r)
}

// PortForward returns a URL, valid once, for connections to the pod's ports.
func (s *Server) PortForward(
	_ context.Context, r *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	return s.streams.PortForward(r)
}

// DialStreams connects a kubelet in this process to the server of the URLs of Exec, Attach and PortForward.
func (s *Server) DialStreams(ctx context.Context) (net.Conn, error) { return s.streams.Dial(ctx) }

// SPDX-License-Identifier: Apache-2.0

// Package cri is the contract between the kubelet and a container runtime: CRI
// v1 and nothing else. The kubelet holds a Client; it is dialled over a socket
// (containerd, CRI-O) or wraps the built-in runtime in this process.
package cri

import (
	"context"
	"net"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Server is what a runtime in this process implements: CRI's own server interfaces.
type Server interface {
	runtimeapi.RuntimeServiceServer
	runtimeapi.ImageServiceServer
}

// Client is what the kubelet calls. Requests and answers are never modified after they are handed over.
type Client struct {
	Runtime runtimeapi.RuntimeServiceClient
	Image   runtimeapi.ImageServiceClient
	// DialStreams connects to the server behind the addresses that Exec, Attach and PortForward answer with; nil: by those addresses.
	DialStreams func(ctx context.Context) (net.Conn, error)
	// Close ends the connection; never nil.
	Close func() error
}

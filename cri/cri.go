// SPDX-License-Identifier: Apache-2.0

// Package cri connects the kubelet to a container runtime by CRI v1. The kubelet
// calls a Client, which is dialled over a socket (containerd, CRI-O) or calls the
// built-in runtime in this process. cluster makes it. The package implements no
// runtime and adds nothing to CRI's messages.
package cri

import (
	"context"
	"net"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Server is implemented by a runtime in this process: CRI's server interfaces.
type Server interface {
	runtimeapi.RuntimeServiceServer
	runtimeapi.ImageServiceServer
}

// Client is the kubelet's client of a runtime. In process, requests and responses are shared: no one may modify them
// after the call.
type Client struct {
	Runtime runtimeapi.RuntimeServiceClient
	Image   runtimeapi.ImageServiceClient
	// DialStreams connects to the server of the URLs that Exec, Attach and PortForward return; nil: dial the host of
	// the URL.
	DialStreams func(ctx context.Context) (net.Conn, error)
	// Close closes the connection; never nil.
	Close func() error
}

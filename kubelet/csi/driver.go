// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

// callWithin is the time limit of one call to a driver, as in Kubernetes.
const callWithin = 2 * time.Minute

// driver is a registered driver.
type driver struct {
	name, socket string
	dir          rootdir.Dir
	standard     bool // it knows the kubelet's directory as rootdir.Standard
	conn         *grpc.ClientConn
	node         csiapi.NodeClient
	within       time.Duration

	id       string
	max      atomic.Int64 // how many volumes the node takes; 0: any number
	counting atomic.Bool  // it is being asked for max
	segments map[string]string

	mu   sync.Mutex
	caps map[csiapi.NodeServiceCapability_RPC_Type]bool
}

// dial connects to a driver at the endpoint that its registrar named.
func dial(name, socket, endpoint string, dir rootdir.Dir) (*driver, error) {
	rel, standard, ok := dir.Rel(endpoint)
	if !ok || rel == "" {
		return nil, fmt.Errorf("the endpoint %.200q is not below the kubelet's directory, %s or %s", endpoint,
			rootdir.Standard, dir)
	}
	conn, err := plugin.Dial(string(dir), rel)
	if err != nil {
		return nil, err
	}
	return &driver{
		name:     name,
		socket:   socket,
		dir:      dir,
		standard: standard,
		conn:     conn,
		node:     csiapi.NewNodeClient(conn),
		within:   callWithin,
	}, nil
}

func (d *driver) close() { _ = d.conn.Close() } // calls under way end with an error

// pathSeen is a path within the kubelet's directory as the driver knows it.
func (d *driver) pathSeen(rel string) string {
	return d.dir.PathFor(string(d.dir)+"/"+rel, d.standard)
}

// learn asks the driver once for its capabilities.
func (d *driver) learn(ctx context.Context) error {
	d.mu.Lock()
	known := d.caps != nil
	d.mu.Unlock()
	if known {
		return nil
	}
	resp, err := call(ctx, d.within, d.node.NodeGetCapabilities, &csiapi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	caps := map[csiapi.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range resp.GetCapabilities() {
		caps[c.GetRpc().GetType()] = true
	}
	d.mu.Lock()
	d.caps = caps
	d.mu.Unlock()
	return nil
}

// can reports whether the driver has a capability.
func (d *driver) can(what csiapi.NodeServiceCapability_RPC_Type) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.caps[what]
}

// call calls a driver with a time limit.
func call[Q, A any](ctx context.Context, within time.Duration, fn func(
	context.Context, Q, ...grpc.CallOption,
) (A, error), q Q,
) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a, err := fn(ctx, q, grpc.WaitForReady(false))
	return a, worded(err)
}

// maxWords bounds the text of a driver's error in an event.
const maxWords = 1024

// worded returns a driver's error without its wrapping and with a bounded message, for events.
func worded(err error) error {
	s, ok := grpcstatus.FromError(err)
	if err == nil || !ok {
		return err
	}
	if msg := s.Message(); len(msg) > maxWords {
		return grpcstatus.Error(s.Code(), msg[:maxWords]+"...")
	}
	return grpcstatus.Error(s.Code(), s.Message())
}

func code(err error) codes.Code {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if s, ok := grpcstatus.FromError(e); ok {
			return s.Code()
		}
	}
	return codes.Unknown
}

func missing(name string) error {
	return fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

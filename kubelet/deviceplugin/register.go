// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"keelson/api/resources"
	"keelson/kubelet/plugin"
	"keelson/lib/inroot"
)

const (
	socketsDir = "device-plugins" // within the kubelet's directory
	ownSocket  = "kubelet.sock"
	// Limits for plugins: resources of a node, devices of a resource, bytes of a list of devices and of a device ID,
	// sockets.
	maxResources = 256
	maxDevices   = 16 << 10
	maxListBytes = 4 << 20
	maxDeviceID  = 253
	maxSockets   = 1024
	// Limits for NUMA nodes of one device, and of all devices of a list.
	maxNUMANodes     = 64
	maxListNUMANodes = 4 * maxDevices
	// listInterval is the minimum time between two lists of a plugin, and changedListInterval that after one which
	// changes the status of pods.
	listInterval        = 100 * time.Millisecond
	changedListInterval = time.Second
)

// Run serves the registration of plugins until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	listener, err := m.listen()
	if err != nil {
		return fmt.Errorf("device plugins: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	m.mu.Lock()
	for name := range m.resources { // of an earlier kubelet process
		wg.Go(func() { m.removeAfterGracePeriod(ctx, name, nil) })
	}
	m.mu.Unlock()
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(16),
		grpc.ConnectionTimeout(10*time.Second), grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(server, &registration{
		add: func(e *endpoint) error {
			ectx, end := context.WithCancel(ctx)
			e.stop = end
			if err := m.addEndpoint(e); err != nil {
				end()
				return err
			}
			wg.Go(func() {
				defer end()
				m.runEndpoint(ectx, e)
			})
			return nil
		},
		dial: m.dial,
	})
	wg.Go(func() {
		<-ctx.Done()
		server.Stop()
	})
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("device plugins: serve: %w", err)
	}
	<-ctx.Done()
	return nil
}

// listen opens the kubelet's socket. It removes the sockets of plugins: by that they know that they have to register
// again.
func (m *Manager) listen() (net.Listener, error) {
	root, err := inroot.Open(string(m.cfg.Dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.MkdirAll(socketsDir, 0o750); err != nil {
		return nil, err
	}
	dir, err := root.OpenDir(socketsDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // O_PATH
	names, err := dir.Names(".", maxSockets)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if i, err := dir.Lstat(n); err != nil || i.Type() != unix.S_IFSOCK && n != ownSocket {
			continue
		}
		if err := dir.Remove(n); err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	// its path may be too long for a socket's name
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir.ProcPath(), ownSocket)})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // its name may be another socket's by then; the next start removes it
	return l, nil
}

func (m *Manager) dial(socket string) (*grpc.ClientConn, error) {
	return plugin.Dial(filepath.Join(string(m.cfg.Dir), socketsDir), socket)
}

// registration implements the service Registration.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	add  func(*endpoint) error
	dial func(socket string) (*grpc.ClientConn, error)
}

// Register adds a plugin. An earlier one of the same resource is stopped.
func (s *registration) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	no := func(format string, args ...any) (*pluginapi.Empty, error) {
		return nil, grpcstatus.Errorf(codes.InvalidArgument, format, args...)
	}
	name := request.GetResourceName()
	socket := request.GetEndpoint()
	switch {
	case request.GetVersion() != pluginapi.Version:
		return no("requested API version %.20q is not supported by kubelet. Supported version is %q",
			request.GetVersion(),
			pluginapi.Version)
	case !resources.IsExtended(corev1.ResourceName(name)):
		return no("the ResourceName %.300q is invalid", name)
	case socket == "" || strings.HasPrefix(socket, ".") || filepath.Base(socket) != socket || socket == ownSocket ||
		len(socket) > 255:
		return no("the endpoint %.300q is not the name of a socket in %s", socket, pluginapi.DevicePluginPath)
	}
	conn, err := s.dial(socket)
	if err != nil {
		return no("%v", err)
	}
	if err := s.add(&endpoint{
		resource: name,
		options:  request.GetOptions(),
		conn:     conn,
		api:      pluginapi.NewDevicePluginClient(conn),
	}); err != nil {
		_ = conn.Close() // nothing was called
		return no("%v", err)
	}
	return &pluginapi.Empty{}, nil
}

// addEndpoint makes a plugin the endpoint of its resource.
func (m *Manager) addEndpoint(e *endpoint) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.resources[e.resource]; r == nil && len(m.resources) >= maxResources {
		return fmt.Errorf("the node has %d resources of device plugins, and can have no more", maxResources)
	}
	r := m.poolLocked(e.resource)
	if r.endpoint != nil {
		r.endpoint.stop()
	}
	if r.listed {
		r.stoppedAt = time.Now()
	}
	r.endpoint = e
	r.listed = false
	m.registrations.WithLabelValues(e.resource).Inc()
	return nil
}

// runEndpoint follows a plugin until its connection ends, or another plugin takes its place.
func (m *Manager) runEndpoint(ctx context.Context, e *endpoint) {
	m.cfg.Log.Info("device plugin is registered", "resource", e.resource)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.expireHealth(ctx, e) }) // in case it never lists its devices
	err := m.listAndWatch(ctx, e)
	_ = e.conn.Close() // nothing more is read from it
	m.mu.Lock()
	r := m.resources[e.resource]
	if r == nil || r.endpoint != e {
		m.mu.Unlock()
		return
	}
	if r.listed {
		r.stoppedAt = time.Now()
	}
	r.listed = false
	m.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	m.cfg.Log.Warn("device plugin has gone", "resource", e.resource, "err", err)
	m.cfg.ResourcesChanged()
	wg.Go(func() { m.expireHealth(ctx, e) })
	m.removeAfterGracePeriod(ctx, e.resource, e)
}

// listAndWatch reads the lists of a plugin's devices until its stream ends.
func (m *Manager) listAndWatch(ctx context.Context, e *endpoint) error {
	stream, err := e.api.ListAndWatch(ctx, &pluginapi.Empty{}, grpc.MaxCallRecvMsgSize(maxListBytes),
		grpc.WaitForReady(false))
	if err != nil {
		return err
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return err
		}
		devices, err := devicesOf(list)
		if err != nil {
			return err
		}
		pause := listInterval // a plugin that sends lists without end does not use up a processor
		if m.updateDevices(e, devices) {
			pause = changedListInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// devicesOf checks and converts a list of devices.
func devicesOf(list *pluginapi.ListAndWatchResponse) (map[string]device, error) {
	devices := map[string]device{}
	all := 0
	for _, d := range list.GetDevices() {
		if id := d.GetID(); id == "" || len(id) > maxDeviceID {
			return nil, fmt.Errorf("%.300q is no name of a device", id)
		}
		n := len(d.GetTopology().GetNodes())
		if all += n; n > maxNUMANodes || all > maxListNUMANodes {
			return nil, fmt.Errorf("device %q is near %d NUMA nodes, all together are near %d: more than %d and %d",
				d.GetID(), n, all, maxNUMANodes, maxListNUMANodes)
		}
		var nodes []int64
		for _, node := range d.GetTopology().GetNodes() {
			nodes = append(nodes, node.GetID())
		}
		slices.Sort(nodes)
		devices[d.GetID()] = device{healthy: d.GetHealth() == pluginapi.Healthy, numaNodes: slices.Compact(nodes)}
	}
	if len(devices) > maxDevices {
		return nil, fmt.Errorf("it has %d devices, more than %d", len(devices), maxDevices)
	}
	return devices, nil
}

// updateDevices takes over a plugin's list, and reports whether pods have devices of the resource.
func (m *Manager) updateDevices(e *endpoint, devices map[string]device) (news bool) {
	m.mu.Lock()
	r := m.resources[e.resource]
	if r == nil || r.endpoint != e || r.listed && maps.EqualFunc(r.devices, devices, device.equal) {
		m.mu.Unlock()
		return false
	}
	more := len(r.devices) != len(devices)
	r.devices = devices
	r.listed = true
	r.known = true
	users := r.podUIDs()
	m.notifyWaitersLocked()
	m.mu.Unlock()
	if more {
		m.writeResources()
	}
	m.cfg.ResourcesChanged()
	m.notifyPods(users)
	return len(users) > 0
}

// removeAfterGracePeriod removes the devices of a plugin that has stopped, unless another registers in time.
// Allocations stay.
func (m *Manager) removeAfterGracePeriod(ctx context.Context, name string, last *endpoint) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(m.cfg.StopGracePeriod):
	}
	m.mu.Lock()
	r := m.resources[name]
	if r.endpoint != last || r.listed || ctx.Err() != nil {
		m.mu.Unlock()
		return
	}
	r.devices = map[string]device{}
	r.known = true
	users := r.podUIDs()
	m.mu.Unlock()
	m.writeResources()
	m.cfg.ResourcesChanged()
	m.notifyPods(users)
}

func (m *Manager) writeResources() {
	m.resourcesFileMu.Lock()
	defer m.resourcesFileMu.Unlock()
	m.mu.Lock()
	known := map[string][]string{}
	for name, r := range m.resources {
		known[name] = []string{}
		for id := range r.devices {
			known[name] = append(known[name], id)
		}
	}
	m.mu.Unlock()
	if err := saveResourcesFile(m.cfg.Dir, known); err != nil {
		m.cfg.Log.Warn("note the resources of device plugins", "err", err)
	}
}

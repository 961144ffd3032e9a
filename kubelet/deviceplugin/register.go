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
	// What plugins may have: resources on a node, devices of a resource, and bytes of a list of devices or of the name of one.
	maxResources = 256
	maxDevices   = 16 << 10
	maxList      = 4 << 20
	maxID        = 253
	maxSockets   = 1024
	// NUMA nodes of one device, and of all devices of a list.
	maxNodes    = 64
	maxAllNodes = 4 * maxDevices
	// between is the least time from one list of a plugin's devices to the next that is read, and betweenNews that after one which changes the
	// status of pods.
	between     = 100 * time.Millisecond
	betweenNews = time.Second
)

// Run takes plugins up until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	l, err := m.listen()
	if err != nil {
		return fmt.Errorf("device plugins: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	m.mu.Lock()
	for name := range m.resources { // of an earlier life
		wg.Go(func() { m.expire(ctx, name, nil) })
	}
	m.mu.Unlock()
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(16), grpc.ConnectionTimeout(10*time.Second), grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(s, &registration{take: func(e *endpoint) error {
		ectx, end := context.WithCancel(ctx)
		e.end = end
		if err := m.take(e); err != nil {
			end()
			return err
		}
		wg.Go(func() {
			defer end()
			m.follow(ectx, e)
		})
		return nil
	}, dial: m.dial})
	wg.Go(func() {
		<-ctx.Done()
		s.Stop()
	})
	if err := s.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("device plugins: serve: %w", err)
	}
	<-ctx.Done()
	return nil
}

// listen opens the kubelet's socket. Those of plugins of an earlier life are removed: so plugins learn that they have to register again.
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
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir.ProcPath(), ownSocket)}) // its path may be too long for a socket's name
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by a name that means something else by then; the next life removes it
	return l, nil
}

func (m *Manager) dial(socket string) (*grpc.ClientConn, error) {
	return plugin.Dial(filepath.Join(string(m.cfg.Dir), socketsDir), socket)
}

// registration is the service that plugins call.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	take func(*endpoint) error
	dial func(socket string) (*grpc.ClientConn, error)
}

// Register takes up a plugin. One of the same resource that was there before is given up.
func (s *registration) Register(_ context.Context, q *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	no := func(format string, args ...any) (*pluginapi.Empty, error) {
		return nil, grpcstatus.Errorf(codes.InvalidArgument, format, args...)
	}
	name, socket := q.GetResourceName(), q.GetEndpoint()
	switch {
	case q.GetVersion() != pluginapi.Version:
		return no("requested API version %.20q is not supported by kubelet. Supported version is %q", q.GetVersion(), pluginapi.Version)
	case !resources.IsExtended(corev1.ResourceName(name)):
		return no("the ResourceName %.300q is invalid", name)
	case socket == "" || strings.HasPrefix(socket, ".") || filepath.Base(socket) != socket || socket == ownSocket || len(socket) > 255:
		return no("the endpoint %.300q is not the name of a socket in %s", socket, pluginapi.DevicePluginPath)
	}
	conn, err := s.dial(socket)
	if err != nil {
		return no("%v", err)
	}
	if err := s.take(&endpoint{resource: name, options: q.GetOptions(), conn: conn, api: pluginapi.NewDevicePluginClient(conn)}); err != nil {
		_ = conn.Close() // nothing was called
		return no("%v", err)
	}
	return &pluginapi.Empty{}, nil
}

// take makes a plugin its resource's.
func (m *Manager) take(e *endpoint) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.resources[e.resource]; r == nil && len(m.resources) >= maxResources {
		return fmt.Errorf("the node has %d resources of device plugins, and can have no more", maxResources)
	}
	r := m.poolLocked(e.resource)
	if r.last != nil {
		r.last.end()
	}
	if r.alive {
		r.gone = time.Now()
	}
	r.last, r.alive = e, false
	m.registrations.WithLabelValues(e.resource).Inc()
	return nil
}

// follow is a plugin's life: it tells its devices until it goes, or another takes its place.
func (m *Manager) follow(ctx context.Context, e *endpoint) {
	m.cfg.Log.Info("device plugin is registered", "resource", e.resource)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.lapse(ctx, e) }) // it may never list its devices
	err := m.watch(ctx, e)
	_ = e.conn.Close() // nothing more is read of it
	m.mu.Lock()
	r := m.resources[e.resource]
	if r == nil || r.last != e {
		m.mu.Unlock()
		return
	}
	if r.alive {
		r.gone = time.Now()
	}
	r.alive = false
	m.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	m.cfg.Log.Warn("device plugin has gone", "resource", e.resource, "err", err)
	m.cfg.Changed()
	wg.Go(func() { m.lapse(ctx, e) })
	m.expire(ctx, e.resource, e)
}

// watch reads what a plugin tells of its devices.
func (m *Manager) watch(ctx context.Context, e *endpoint) error {
	stream, err := e.api.ListAndWatch(ctx, &pluginapi.Empty{}, grpc.MaxCallRecvMsgSize(maxList), grpc.WaitForReady(false))
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
		pause := between // a plugin that tells without end has one processor's share no longer
		if m.heard(e, devices) {
			pause = betweenNews
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// devicesOf reads a plugin's list.
func devicesOf(list *pluginapi.ListAndWatchResponse) (map[string]device, error) {
	devices, all := map[string]device{}, 0
	for _, d := range list.GetDevices() {
		if id := d.GetID(); id == "" || len(id) > maxID {
			return nil, fmt.Errorf("%.300q is no name of a device", id)
		}
		n := len(d.GetTopology().GetNodes())
		if all += n; n > maxNodes || all > maxAllNodes {
			return nil, fmt.Errorf("device %q is near %d NUMA nodes, all together are near %d: more than %d and %d", d.GetID(), n, all, maxNodes, maxAllNodes)
		}
		var nodes []int64
		for _, node := range d.GetTopology().GetNodes() {
			nodes = append(nodes, node.GetID())
		}
		slices.Sort(nodes)
		devices[d.GetID()] = device{healthy: d.GetHealth() == pluginapi.Healthy, nodes: slices.Compact(nodes)}
	}
	if len(devices) > maxDevices {
		return nil, fmt.Errorf("it has %d devices, more than %d", len(devices), maxDevices)
	}
	return devices, nil
}

// heard notes a plugin's devices, and tells whether pods have some of them.
func (m *Manager) heard(e *endpoint, devices map[string]device) (news bool) {
	m.mu.Lock()
	r := m.resources[e.resource]
	if r == nil || r.last != e || r.alive && maps.EqualFunc(r.devices, devices, device.equal) {
		m.mu.Unlock()
		return false
	}
	more := len(r.devices) != len(devices)
	r.devices, r.alive, r.told = devices, true, true
	users := r.users()
	m.changedLocked()
	m.mu.Unlock()
	if more {
		m.keepResources()
	}
	m.cfg.Changed()
	m.tellUsers(users)
	return len(users) > 0
}

// expire forgets the devices of a plugin that has gone, unless one comes in time. Which device a pod has stays known.
func (m *Manager) expire(ctx context.Context, name string, last *endpoint) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(m.cfg.Grace):
	}
	m.mu.Lock()
	r := m.resources[name]
	if r.last != last || r.alive || ctx.Err() != nil {
		m.mu.Unlock()
		return
	}
	r.devices, r.told = map[string]device{}, true
	users := r.users()
	m.mu.Unlock()
	m.keepResources()
	m.cfg.Changed()
	m.tellUsers(users)
}

func (m *Manager) keepResources() {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	known := map[string][]string{}
	for name, r := range m.resources {
		known[name] = []string{}
		for id := range r.devices {
			known[name] = append(known[name], id)
		}
	}
	m.mu.Unlock()
	if err := saveResources(m.cfg.Dir, known); err != nil {
		m.cfg.Log.Warn("note the resources of device plugins", "err", err)
	}
}

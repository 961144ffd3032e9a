// SPDX-License-Identifier: Apache-2.0

// Package csitest has a CSI driver whose volumes are directories, and its registrar. Tests of the kubelet run it in
// process, and a script as a program; as root it makes real bind mounts, otherwise plain directories.
package csitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver is a driver of one node. Fields are set before it serves; Fail may be changed at any time by Break.
type Driver struct {
	csiapi.UnimplementedIdentityServer
	csiapi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	Name, NodeID string
	// Dir holds the volumes; Kubelet is the kubelet's directory, and Named the name of it that paths in requests begin
	// with.
	Dir, Kubelet, Named string
	Topology            map[string]string
	MaxVolumes          int64
	Can                 []csiapi.NodeServiceCapability_RPC_Type
	// Mounts: volumes are bind mounts, which needs root.
	Mounts bool

	mu    sync.Mutex
	calls []string
	fail  map[string]error
	last  map[string]any
}

// Serve makes the driver's socket and the registrar's, and answers until ctx is done. Both sockets are gone then.
func (d *Driver) Serve(ctx context.Context) error {
	at := filepath.Join(d.Kubelet, "plugins", d.Name)
	if err := os.MkdirAll(at, 0o750); err != nil {
		return err
	}
	server := grpc.NewServer()
	csiapi.RegisterIdentityServer(server, d)
	csiapi.RegisterNodeServer(server, d)
	r := grpc.NewServer()
	registration.RegisterRegistrationServer(r, d)
	one, err := listen(at, "csi.sock")
	if err != nil {
		return err
	}
	two, err := listen(filepath.Join(d.Kubelet, "plugins_registry"), d.Name+"-reg.sock")
	if err != nil {
		return errors.Join(err, one.Close())
	}
	stop := context.AfterFunc(ctx, func() {
		r.Stop()
		server.Stop()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(one) }) // it ends with Stop
	_ = r.Serve(two)
	wg.Wait()
	return errors.Join(remove(at, "csi.sock"), remove(filepath.Join(d.Kubelet, "plugins_registry"), d.Name+"-reg.sock"))
}

func remove(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// listen makes a socket in a directory whose path may be longer than the name of a socket can be.
func listen(dir, name string) (net.Listener, error) {
	f, err := os.Open(dir) // a test's
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if err := remove(dir, name); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix",
		fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), name))
	if err != nil {
		return nil, err
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // its name leads nowhere by then
	}
	return l, nil
}

// Calls are the calls about volumes since the last time, as "NodeStageVolume v1".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.calls
	d.calls = nil
	return out
}

// Last is the last request of a method.
func (d *Driver) Last(method string) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last[method]
}

// ErrHang is an error for Break: the method answers when the caller gives up.
var ErrHang = errors.New("hang")

// Break has a method fail; nil repairs it.
func (d *Driver) Break(method string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail == nil {
		d.fail = map[string]error{}
	}
	d.fail[method] = err
}

// SetMaxVolumes changes how many volumes the node takes.
func (d *Driver) SetMaxVolumes(most int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.MaxVolumes = most
}

func (d *Driver) record(ctx context.Context, method, id string, req any) error {
	d.mu.Lock()
	d.calls = append(d.calls, method+" "+id)
	if d.last == nil {
		d.last = map[string]any{}
	}
	d.last[method] = req
	err := d.fail[method]
	d.mu.Unlock()
	if errors.Is(err, ErrHang) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// GetInfo is the registrar's.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              "CSIPlugin",
		Name:              d.Name,
		Endpoint:          filepath.Join(d.Named, "plugins", d.Name, "csi.sock"),
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus is the registrar's.
func (d *Driver) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, strings.TrimSpace(fmt.Sprintf("registered %v %s", s.GetPluginRegistered(), s.GetError())))
	return &registration.RegistrationStatusResponse{}, nil
}

// GetPluginInfo names the driver.
func (d *Driver) GetPluginInfo(context.Context, *csiapi.GetPluginInfoRequest) (*csiapi.GetPluginInfoResponse, error) {
	return &csiapi.GetPluginInfoResponse{Name: d.Name, VendorVersion: "test"}, nil
}

// NodeGetInfo says which node it is.
func (d *Driver) NodeGetInfo(ctx context.Context, r *csiapi.NodeGetInfoRequest) (*csiapi.NodeGetInfoResponse, error) {
	d.mu.Lock()
	err := d.fail["NodeGetInfo"]
	d.mu.Unlock()
	if errors.Is(err, ErrHang) {
		<-ctx.Done()
	}
	d.mu.Lock()
	out := &csiapi.NodeGetInfoResponse{NodeId: d.NodeID, MaxVolumesPerNode: d.MaxVolumes}
	d.mu.Unlock()
	if len(d.Topology) > 0 {
		out.AccessibleTopology = &csiapi.Topology{Segments: maps.Clone(d.Topology)}
	}
	return out, err
}

// NodeGetCapabilities says what it can do.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csiapi.NodeGetCapabilitiesRequest,
) (*csiapi.NodeGetCapabilitiesResponse, error) {
	out := &csiapi.NodeGetCapabilitiesResponse{}
	for _, c := range d.Can {
		out.Capabilities = append(out.Capabilities, &csiapi.NodeServiceCapability{
			Type: &csiapi.NodeServiceCapability_Rpc{Rpc: &csiapi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}

func (d *Driver) can(what csiapi.NodeServiceCapability_RPC_Type) bool {
	return slices.Contains(d.Can, what)
}

// real is the path of the host that a path of the kubelet's means.
func (d *Driver) real(p string) (string, error) {
	rel, ok := strings.CutPrefix(p, d.Named+"/")
	if !ok {
		return "", status.Errorf(codes.InvalidArgument, "%s is not below %s", p, d.Named)
	}
	return filepath.Join(d.Kubelet, rel), nil
}

func (d *Driver) volume(id string) (string, error) {
	dir := filepath.Join(d.Dir, filepath.Base(id))
	return dir, os.MkdirAll(dir, 0o755) // a test's
}

// bind puts src at dst, which is made.
func (d *Driver) bind(src, dst string, readOnly bool) error {
	if err := os.MkdirAll(dst, 0o755); err != nil { // a test's
		return err
	}
	if !d.Mounts || mounted(dst) {
		return nil
	}
	if err := unix.Mount(src, dst, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if readOnly {
		return unix.Mount("", dst, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

func mounted(p string) bool {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, p, unix.AT_SYMLINK_NOFOLLOW, 0, &s)
	return err == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func unbind(dst string) error {
	for mounted(dst) {
		if err := unix.Unmount(dst, 0); err != nil {
			return err
		}
	}
	err := os.RemoveAll(dst)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

// Package dratest is a DRA driver for tests: it registers with a kubelet, and prepares claims by writing a CDI
// specification in which each claim is a device that lists, in its container's environment, what it was given. It
// counts what it is asked, and fails when a test wants it to.
package dratest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	resourcev1 "k8s.io/api/resource/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"keelson/lib/signal"
)

// Driver is a driver. Set its fields before Serve.
type Driver struct {
	registration.UnimplementedRegistrationServer
	draapi.UnimplementedDRAPluginServer
	Name string
	// Kubelet is the kubelet's directory, and Named what the driver calls it.
	Kubelet, Named string
	// CDI is where its specification goes.
	CDI string
	// Claim reads a claim.
	Claim func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// Ready, unless nil, is closed when the driver can be called.
	Ready chan struct{}
	// Fail, unless nil, is asked at each call ("prepare", "unprepare") about a claim.
	Fail func(call, name string) error
	// Old: it serves v1beta1 of the API only.
	Old bool
	// Health is how it reports the health of its devices.
	Health Health

	mu       sync.Mutex
	calls    []string
	prepared map[string][]string // environments by claim's UID
	reports  []*healthapi.DeviceHealth
	watchers map[any]signal.Signal
}

// Serve makes the driver's socket and the registrar's, and answers until ctx is done. Both sockets are gone then.
func (d *Driver) Serve(ctx context.Context) error {
	at := filepath.Join(d.Kubelet, "plugins", d.Name)
	if err := os.MkdirAll(at, 0o750); err != nil {
		return err
	}
	server := grpc.NewServer()
	r := grpc.NewServer()
	if d.Old {
		drav1beta1.RegisterDRAPluginServer(server, drav1beta1.V1ServerWrapper{DRAPluginServer: d})
	} else {
		draapi.RegisterDRAPluginServer(server, d)
	}
	d.registerHealth(server)
	registration.RegisterRegistrationServer(r, d)
	one, err := listen(at, "dra.sock")
	if err != nil {
		return err
	}
	registry := filepath.Join(d.Kubelet, "plugins_registry")
	two, err := listen(registry, d.Name+"-reg.sock")
	if err != nil {
		return errors.Join(err, one.Close())
	}
	if d.Ready != nil {
		close(d.Ready)
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
	return errors.Join(remove(filepath.Join(at, "dra.sock")), remove(filepath.Join(registry, d.Name+"-reg.sock")))
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
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
	if err := remove(filepath.Join(dir, name)); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix",
		fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), name))
	if u, ok := l.(*net.UnixListener); ok && err == nil {
		u.SetUnlinkOnClose(false) // its name leads nowhere by then
	}
	return l, err
}

// GetInfo says what the driver is.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	version := draapi.DRAPluginService
	if d.Old {
		version = drav1beta1.DRAPluginService
	}
	return &registration.PluginInfo{
		Type:              registration.DRAPlugin,
		Name:              d.Name,
		Endpoint:          filepath.Join(d.Named, "plugins", d.Name, "dra.sock"),
		SupportedVersions: append(d.healthServices(), version),
	}, nil
}

// NotifyRegistrationStatus receives the result of the registration.
func (d *Driver) NotifyRegistrationStatus(
	context.Context, *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// NodePrepareResources prepares claims.
func (d *Driver) NodePrepareResources(
	ctx context.Context, r *draapi.NodePrepareResourcesRequest,
) (*draapi.NodePrepareResourcesResponse, error) {
	out := &draapi.NodePrepareResourcesResponse{Claims: map[string]*draapi.NodePrepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		devices, err := d.prepare(ctx, c)
		one := &draapi.NodePrepareResourceResponse{Devices: devices}
		if err != nil {
			one.Error = err.Error()
		}
		out.Claims[c.GetUid()] = one
	}
	return out, nil
}

func (d *Driver) prepare(ctx context.Context, c *draapi.Claim) ([]*draapi.Device, error) {
	if err := d.called("prepare", c.GetName()); err != nil {
		return nil, err
	}
	claim, err := d.Claim(ctx, c.GetNamespace(), c.GetName())
	if err != nil {
		return nil, err
	}
	if string(claim.UID) != c.GetUid() || claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s is another, or has no devices", c.GetName())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.prepared == nil {
		d.prepared = map[string][]string{}
	}
	var out []*draapi.Device
	for i := range claim.Status.Allocation.Devices.Results {
		res := &claim.Status.Allocation.Devices.Results[i]
		if res.Driver != d.Name {
			continue
		}
		name := fmt.Sprintf("%s-%d", claim.UID, i)
		d.prepared[name] = []string{fmt.Sprintf("DEVICE_%s=%s/%s", res.Request, res.Pool, res.Device)}
		out = append(out, &draapi.Device{
			RequestNames: []string{res.Request},
			PoolName:     res.Pool,
			DeviceName:   res.Device,
			ShareId:      (*string)(res.ShareID),
			CdiDeviceIds: []string{d.Name + "/claim=" + name},
		})
	}
	return out, d.writeLocked()
}

// NodeUnprepareResources takes claims back.
func (d *Driver) NodeUnprepareResources(
	_ context.Context, r *draapi.NodeUnprepareResourcesRequest,
) (*draapi.NodeUnprepareResourcesResponse, error) {
	out := &draapi.NodeUnprepareResourcesResponse{Claims: map[string]*draapi.NodeUnprepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		one := &draapi.NodeUnprepareResourceResponse{}
		if err := d.unprepare(c); err != nil {
			one.Error = err.Error()
		}
		out.Claims[c.GetUid()] = one
	}
	return out, nil
}

func (d *Driver) unprepare(c *draapi.Claim) error {
	if err := d.called("unprepare", c.GetName()); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.prepared {
		if len(name) > len(c.GetUid()) && name[:len(c.GetUid())] == c.GetUid() {
			delete(d.prepared, name)
		}
	}
	return d.writeLocked()
}

// writeLocked writes the specification of what is prepared.
func (d *Driver) writeLocked() error {
	path := filepath.Join(d.CDI, d.Name+".json")
	if len(d.prepared) == 0 {
		return remove(path)
	}
	type edits struct {
		Env []string `json:"env"`
	}
	type device struct {
		Name  string `json:"name"`
		Edits edits  `json:"containerEdits"`
	}
	spec := struct {
		Version string   `json:"cdiVersion"`
		Kind    string   `json:"kind"`
		Devices []device `json:"devices"`
	}{"0.7.0", d.Name + "/claim", nil}
	for name, env := range d.prepared {
		spec.Devices = append(spec.Devices, device{name, edits{env}})
	}
	slices.SortFunc(spec.Devices, func(a, b device) int { return slices.Compare([]string{a.Name}, []string{b.Name}) })
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (d *Driver) called(call, name string) error {
	d.mu.Lock()
	d.calls = append(d.calls, call+" "+name)
	d.mu.Unlock()
	if d.Fail != nil {
		return d.Fail(call, name)
	}
	return nil
}

// Calls are the calls since the last time, as "prepare c".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.calls
	d.calls = nil
	return out
}

// SPDX-License-Identifier: Apache-2.0

package dratest

import (
	"slices"
	"time"

	"google.golang.org/grpc"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"keelson/lib/signal"
)

// Health says which service of devices' health a driver has.
type Health int

// The services.
const (
	HealthV1 Health = iota
	HealthV1Alpha1
	HealthRefused // it says that it has the service, and then that it does not
	NoHealth
)

// repeatAfter is when a report is sent again: the kubelet trusts it for 30 seconds.
const repeatAfter = 10 * time.Second

// health serves what a test has the driver report.
type health struct {
	healthapi.UnimplementedDRAResourceHealthServer
	d *Driver
}

// Report has the driver report devices in addition to those that it reports already.
func (d *Driver) Report(devices ...*healthapi.DeviceHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range devices {
		same := func(o *healthapi.DeviceHealth) bool { return o.GetDevice().String() == h.GetDevice().String() }
		d.reports = append(slices.DeleteFunc(slices.Clone(d.reports), same), h)
	}
	for _, changed := range d.watchers {
		changed.Notify()
	}
}

// NodeWatchResources reports all devices at once, after each change, and again from time to time.
func (h *health) NodeWatchResources(
	_ *healthapi.NodeWatchResourcesRequest, s grpc.ServerStreamingServer[healthapi.NodeWatchResourcesResponse],
) error {
	changed := signal.New()
	h.d.mu.Lock()
	if h.d.watchers == nil {
		h.d.watchers = map[any]signal.Signal{}
	}
	h.d.watchers[s] = changed
	h.d.mu.Unlock()
	defer func() {
		h.d.mu.Lock()
		defer h.d.mu.Unlock()
		delete(h.d.watchers, s)
	}()
	repeat := time.NewTicker(repeatAfter)
	defer repeat.Stop()
	for {
		h.d.mu.Lock()
		all := &healthapi.NodeWatchResourcesResponse{Devices: slices.Clip(h.d.reports)}
		h.d.mu.Unlock()
		if err := s.Send(all); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-changed.C():
		case <-repeat.C:
		}
	}
}

func (d *Driver) registerHealth(s *grpc.Server) {
	switch d.Health {
	case HealthV1:
		healthapi.RegisterDRAResourceHealthServer(s, &health{d: d})
	case HealthV1Alpha1:
		healthv1alpha1.RegisterDRAResourceHealthServer(s, healthapi.V1ServerWrapper{Server: &health{d: d}})
	case HealthRefused, NoHealth:
	}
}

// healthServices are the services as the driver registers them.
func (d *Driver) healthServices() []string {
	switch d.Health {
	case HealthV1, HealthRefused:
		return []string{healthapi.DRAResourceHealthService}
	case HealthV1Alpha1:
		return []string{healthv1alpha1.DRAResourceHealthService}
	case NoHealth:
	}
	return nil
}

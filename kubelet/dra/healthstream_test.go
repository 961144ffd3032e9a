// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

// healthService is a driver's service of health without a connection: each stream gets the next of reports, and ends
// when end is closed.
type healthService struct {
	reports chan []*healthapi.DeviceHealth
	end     chan struct{}
	streams []context.Context // of all calls
}

func newHealthService() *healthService {
	return &healthService{reports: make(chan []*healthapi.DeviceHealth), end: make(chan struct{})}
}

func (s *healthService) NodeWatchResources(
	ctx context.Context, _ *healthapi.NodeWatchResourcesRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[healthapi.NodeWatchResourcesResponse], error) {
	s.streams = append(s.streams, ctx)
	return &healthStream{ctx: ctx, of: s}, nil
}

// open is how many streams hold something.
func (s *healthService) open() (n int) {
	for _, ctx := range s.streams {
		if ctx.Err() == nil {
			n++
		}
	}
	return n
}

type healthStream struct {
	grpc.ClientStream
	ctx context.Context // of the stream
	of  *healthService
}

func (s *healthStream) Recv() (*healthapi.NodeWatchResourcesResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case <-s.of.end:
		return nil, io.EOF
	case list := <-s.of.reports:
		return &healthapi.NodeWatchResourcesResponse{Devices: list}, nil
	}
}

// healthManager has the claim c of a pod, with the device gpu-x, and counts how often the pod is notified.
func healthManager(notified *atomic.Int32) *Manager {
	m := New(Config{Log: slog.New(slog.DiscardHandler), HealthChanged: func(string) { notified.Add(1) }})
	m.claims["dev/c"] = &claim{record: record{
		Namespace: "dev",
		Name:      "c",
		Pods:      []string{"pod-p"},
		Prepared:  true,
		Devices:   []device{{Driver: gpus, Pool: "n", Device: "gpu-x"}},
	}}
	return m
}

// add registers a driver behind a service.
func (m *Manager) add(s *healthService) *driver {
	d := &driver{name: gpus, health: s}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drivers[gpus] = append(m.drivers[gpus], d)
	m.notifyHealthLocked()
	return d
}

// remove takes a driver away whose socket has gone.
func (m *Manager) remove(d *driver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drivers[gpus] = slices.DeleteFunc(m.drivers[gpus], func(o *driver) bool { return o == d })
	if len(m.drivers[gpus]) == 0 {
		delete(m.drivers, gpus)
	}
	m.notifyHealthLocked()
}

// healthNow is what the pod's status says of gpu-x.
func healthNow(t *testing.T, m *Manager) corev1.ResourceHealthStatus {
	t.Helper()
	p := pod("p", "c")
	got := m.Health(p, &p.Spec.Containers[0])
	if len(got) != 1 || len(got[0].Resources) != 1 {
		t.Fatalf("health %v, want that of one device", got)
	}
	return got[0].Resources[0].Health
}

var badReport = []*healthapi.DeviceHealth{
	healthOfDevice(strings.Repeat("x", maxDeviceName), healthapi.HealthStatus_HEALTHY, 0, ""),
}

// TestRefusedReportEndsItsStream: a stream whose report is refused is closed before the next one is opened.
func TestRefusedReportEndsItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := healthManager(new(atomic.Int32))
		healthService := newHealthService()
		d := m.add(healthService)
		done := make(chan struct{})
		go func() {
			m.watchDriverHealth(ctx, d)
			close(done)
		}() // ends with ctx
		for i := range 10 {
			healthService.reports <- badReport
			time.Sleep(reconnectDelay)
			synctest.Wait()
			if len(healthService.streams) != i+2 || healthService.open() != 1 {
				t.Errorf("after %d refused reports: %d streams, %d of them open, want 1", i+1,
					len(healthService.streams), healthService.open())
			}
		}
		cancel()
		<-done
		if healthService.open() != 0 {
			t.Errorf("at the end %d streams are open", healthService.open())
		}
	})
}

// TestHalfAReport: no part of a refused report counts, neither the devices before the bad one nor that the
// driver has reported.
func TestHalfAReport(t *testing.T) {
	manager := healthManager(new(atomic.Int32))
	half := func(h healthapi.HealthStatus) []*healthapi.DeviceHealth {
		return append([]*healthapi.DeviceHealth{healthOfDevice("gpu-x", h, 1000, "")}, badReport...)
	}
	if _, err := manager.updateHealth(gpus, half(healthapi.HealthStatus_HEALTHY)); err == nil {
		t.Error("the first report: it was not refused")
	}
	p := pod("p", "c")
	if got := manager.Health(p, &p.Spec.Containers[0]); got != nil || len(manager.health.byDriver) > 0 {
		t.Errorf("after a first report that was refused: %v, %v", got, manager.health.byDriver)
	}
	if uids, err := manager.updateHealth(gpus, half(healthapi.HealthStatus_HEALTHY)[:1]); err != nil ||
		!slices.Equal(uids, []string{"pod-p"}) {
		t.Errorf("a good report: notified %v, %v", uids, err)
	}
	if uids, err := manager.updateHealth(gpus, half(healthapi.HealthStatus_UNHEALTHY)); err == nil || len(uids) > 0 {
		t.Errorf("a report that is half good: notified %v, %v", uids, err)
	}
	if got := healthNow(t, manager); got != corev1.ResourceHealthStatusHealthy {
		t.Errorf("after half a report: %s, want Healthy", got)
	}
	if len(manager.health.byDriver[gpus]) != 1 {
		t.Errorf("devices that are known: %v, want gpu-x alone", manager.health.byDriver[gpus])
	}
}

// TestReportsOfAnEndedStream: a report that is valid for a day holds for 30 seconds once its stream has ended, however
// often the kubelet tries to open the next. While the stream is open, or a successor's is, it holds as long as the
// driver said.
func TestReportsOfAnEndedStream(t *testing.T) {
	unhealthy := corev1.ResourceHealthStatusUnhealthy
	unknown := corev1.ResourceHealthStatusUnknown
	const day = 24 * 60 * 60
	for name, tt := range map[string]struct {
		then func(*Manager, *driver, *healthService)
		want corev1.ResourceHealthStatus // after 31 seconds
	}{
		"the stream stays":    {func(*Manager, *driver, *healthService) {}, unhealthy},
		"the stream ends":     {func(_ *Manager, _ *driver, s *healthService) { close(s.end) }, unknown},
		"the driver has gone": {func(m *Manager, d *driver, _ *healthService) { m.remove(d) }, unknown},
		"a successor comes":   {func(m *Manager, _ *driver, _ *healthService) { m.add(newHealthService()) }, unhealthy},
		"a successor came, and then the first has gone": {func(m *Manager, d *driver, _ *healthService) {
			m.add(newHealthService())
			m.remove(d)
		}, unhealthy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var notified atomic.Int32
				manager := healthManager(&notified)
				s := newHealthService()
				manager.health.startupOver = true
				d := manager.add(s)
				done := make(chan struct{})
				go func() {
					manager.watchHealth(ctx)
					close(done)
				}() // ends with ctx
				s.reports <- []*healthapi.DeviceHealth{
					healthOfDevice("gpu-x", healthapi.HealthStatus_UNHEALTHY, day, ""),
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := healthNow(t, manager); got != unhealthy || notified.Load() != 1 {
					t.Errorf("while the stream is open: %s, the pod was notified %d times, want Unhealthy and 1", got,
						notified.Load())
				}
				tt.then(manager, d, s)
				time.Sleep(defaultHealthTimeout - time.Second)
				synctest.Wait()
				if got := healthNow(t, manager); got != unhealthy || notified.Load() != 1 {
					t.Errorf("after 29 seconds: %s, the pod was notified %d times, want Unhealthy and 1", got, notified.Load())
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if got, again := healthNow(t, manager), notified.Load() == 2; got != tt.want ||
					again != (tt.want == unknown) {
					t.Errorf("after 31 seconds: %s, the pod was notified %d times, want %s", got, notified.Load(), tt.want)
				}
				cancel()
				<-done
			})
		})
	}
}

// TestRefusedStream: a call that fails at once is tried again, and leaves no stream either.
func TestRefusedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*reconnectDelay+time.Second)
		defer cancel()
		m := healthManager(new(atomic.Int32))
		s := &refusingService{}
		m.watchDriverHealth(ctx, &driver{name: gpus, health: s})
		if s.calls != 11 || s.last.Err() == nil {
			t.Errorf("%d calls in 51 seconds, want 11; the last one's context: %v", s.calls, s.last.Err())
		}
	})
}

type refusingService struct {
	calls int
	last  context.Context // of the last call
}

func (s *refusingService) NodeWatchResources(
	ctx context.Context, _ *healthapi.NodeWatchResourcesRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[healthapi.NodeWatchResourcesResponse], error) {
	s.calls++
	s.last = ctx
	return nil, errors.New("no")
}

// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

// lister is a plugin without a connection: it sends its lists, until its stream ends.
type lister struct {
	pluginapi.DevicePluginClient
	lists chan []*pluginapi.Device
}

func (l *lister) ListAndWatch(
	ctx context.Context, _ *pluginapi.Empty, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse], error) {
	return &listStream{ctx: ctx, of: l}, nil
}

type listStream struct {
	grpc.ClientStream
	ctx context.Context // of the stream
	of  *lister
}

func (s *listStream) Recv() (*pluginapi.ListAndWatchResponse, error) {
	select {
	case list := <-s.of.lists:
		return &pluginapi.ListAndWatchResponse{Devices: list}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// timedManager is a Manager whose pod p has the device a, in a test with a clock of its own.
type timedManager struct {
	*Manager
	t        *testing.T
	notified atomic.Int32 // how often the pod was notified of its devices' health
	wg       sync.WaitGroup
}

func newTimedManager(t *testing.T) *timedManager {
	t.Helper()
	n := &timedManager{t: t}
	n.Manager = New(Config{
		Dir:              rootdir.Dir(t.TempDir()),
		Log:              slog.New(slog.DiscardHandler),
		ResourcesChanged: func() {},
		HealthChanged:    func(string) { n.notified.Add(1) },
	})
	n.restoreLocked(&record{
		UID:        "p",
		Containers: map[string][]allocation{"main": {{Resource: gpus, IDs: []string{"a"}}}},
	})
	return n
}

// add takes up a plugin that sends lists, and follows it until ctx is done.
func (n *timedManager) add(ctx context.Context, lists ...[]*pluginapi.Device) *endpoint {
	n.t.Helper()
	conn, err := plugin.Dial(n.t.TempDir(), "none") // it is never called
	if err != nil {
		n.t.Fatal(err)
	}
	l := &lister{lists: make(chan []*pluginapi.Device, len(lists))}
	for _, list := range lists {
		l.lists <- list
	}
	ctx, end := context.WithCancel(ctx)
	e := &endpoint{
		resource: gpus,
		conn:     conn,
		api:      l,
		stop:     end,
	}
	if err := n.addEndpoint(e); err != nil {
		n.t.Fatal(err)
	}
	n.wg.Go(func() { n.runEndpoint(ctx, e) })
	synctest.Wait()
	return e
}

// is checks the health of the pod's device, and how often the pod was notified of it.
func (n *timedManager) is(when string, want corev1.ResourceHealthStatus, notified int32) {
	n.t.Helper()
	synctest.Wait()
	got := n.Health("p", "main")
	if len(got) != 1 || len(got[0].Resources) != 1 || got[0].Resources[0].Health != want || n.notified.Load() != notified {
		n.t.Errorf("%s: %v, the pod was notified %d times, want %s and %d", when, got, n.notified.Load(), want, notified)
	}
}

// TestHealthWithoutAList: a plugin that takes another's place and sends no list leaves the devices as the first one
// said for 30 seconds; then their health is unknown, and pods are notified.
func TestHealthWithoutAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := newTimedManager(t)
		n.add(ctx, devices("a"))
		n.is("listed", corev1.ResourceHealthStatusHealthy, 1)
		time.Sleep(time.Hour)
		n.add(ctx)
		time.Sleep(29 * time.Second)
		n.is("29 seconds after the next came", corev1.ResourceHealthStatusHealthy, 1)
		time.Sleep(2 * time.Second)
		n.is("31 seconds after the next came", corev1.ResourceHealthStatusUnknown, 2)
		cancel()
		n.wg.Wait()
	})
}

// TestHealthAfterABadList: a plugin whose list is refused is given up with its connection, and what it said before
// holds for 30 seconds.
func TestHealthAfterABadList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		timedManager := newTimedManager(t)
		e := timedManager.add(ctx, devices("a"))
		time.Sleep(time.Hour)
		e.api.(*lister).lists <- devices("")
		timedManager.is("its list was refused", corev1.ResourceHealthStatusHealthy, 1)
		if got := e.conn.GetState(); got != connectivity.Shutdown {
			t.Errorf("its connection is %v", got)
		}
		time.Sleep(29 * time.Second)
		timedManager.is("29 seconds later", corev1.ResourceHealthStatusHealthy, 1)
		time.Sleep(2 * time.Second)
		timedManager.is("31 seconds later", corev1.ResourceHealthStatusUnknown, 2)
		cancel()
		timedManager.wg.Wait()
	})
}

// TestLapseOfAResourceThatHasGone: the wait for a plugin may outlive what is known of its resource.
func TestLapseOfAResourceThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTimedManager(t)
		before := time.Now()
		n.expireHealth(t.Context(), &endpoint{resource: "example.com/other"})
		if took := time.Since(before); took != 30*time.Second || n.notified.Load() != 0 {
			t.Errorf("after %v the pod was notified %d times, want 30s and none", took, n.notified.Load())
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"keelson/kubelet/podinfo"
	"keelson/lib/signal"
)

const (
	// maxReportedDevices limits the devices of a driver's reports, maxDeviceName their names in bytes, and
	// maxHealthTimeout the timeout of a report.
	maxReportedDevices = 16 << 10
	maxDeviceName      = 1024
	maxHealthTimeout   = 24 * time.Hour
	// reportInterval is the minimum time between two reports of a driver, and changedReportInterval that after one
	// which changes the status of pods.
	reportInterval        = 100 * time.Millisecond
	changedReportInterval = time.Second
	// reconnectDelay is the time until a broken stream is opened again, as in Kubernetes.
	reconnectDelay = 5 * time.Second
)

// deviceKey identifies a device of a driver.
type deviceKey struct{ pool, device string }

// healthReport is the last health of a device.
type healthReport struct {
	health  corev1.ResourceHealthStatus
	message string
	until   time.Time // Unknown from then on
}

// healthInfo is the health of all devices. mu of the Manager guards it.
type healthInfo struct {
	// a driver without an entry has not reported since the kubelet started
	byDriver    map[string]map[deviceKey]healthReport
	startupOver bool          // drivers have had time to report since the kubelet started
	changed     signal.Signal // drivers or reports have changed
}

// healthClientOf returns a client of the newest version of the health service that a driver has; nil: it has none.
func healthClientOf(conn *grpc.ClientConn, versions []string) healthapi.DRAResourceHealthClient {
	switch {
	case slices.Contains(versions, healthapi.DRAResourceHealthService):
		return healthapi.NewDRAResourceHealthClient(conn)
	case slices.Contains(versions, healthv1alpha1.DRAResourceHealthService):
		return healthapi.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(conn)}
	}
	return nil
}

// Health returns the health of the devices of a container's claims, by claim and request as the container names them. A
// claim is left out as long as one of its drivers may still report for the first time since the kubelet started.
func (m *Manager) Health(p *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
	wanted, err := requestsOf(p, c)
	if m == nil || err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, w := range wanted {
		of := m.claims[p.Namespace+"/"+w.claim]
		if of == nil || !of.Prepared || !slices.Contains(of.Pods, string(p.UID)) {
			continue
		}
		if list, known := m.deviceHealthLocked(of, w.name); known && len(list) > 0 {
			out = append(out, podinfo.Health("claim:"+w.statusName, list))
		}
	}
	return out
}

func (m *Manager) deviceHealthLocked(of *claim, request string) (list []podinfo.DeviceHealth, known bool) {
	for i := range of.Devices {
		d := &of.Devices[i]
		if !d.serves(request) {
			continue
		}
		reports, known := m.health.byDriver[d.Driver]
		if !known && !m.health.startupOver {
			return nil, false
		}
		one := podinfo.DeviceHealth{IDs: d.resourceIDs(), Health: corev1.ResourceHealthStatusUnknown}
		if r, ok := reports[deviceKey{d.Pool, d.Device}]; ok && time.Now().Before(r.until) {
			one.Health = r.health
			one.Message = r.message
		}
		list = append(list, one)
	}
	return list, true
}

// resourceIDs returns possible resourceIDs of the device in a status: its first CDI device ID, as in Kubernetes, else
// its driver, pool and name.
func (d *device) resourceIDs() []string {
	var out []string
	if len(d.CDI) > 0 {
		out = append(out, d.CDI[0])
	}
	at := d.Driver + "/" + d.Pool + "/" + d.Device
	out = append(out, at)
	if d.ShareID != nil {
		out = append(out, at+"/"+*d.ShareID)
	}
	return out
}

// watchHealth watches the health of devices until ctx is done. It watches one driver of each name: the one that
// registered last.
func (m *Manager) watchHealth(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	type stream struct {
		of  *driver
		end context.CancelFunc
	}
	streams := map[string]stream{}
	startupEnd := time.Now().Add(m.cfg.HealthTimeout)
	timer := time.NewTimer(m.cfg.HealthTimeout)
	defer timer.Stop()
	for {
		latest := m.latestDrivers()
		for name, s := range streams {
			if latest[name] != s.of {
				s.end()
				delete(streams, name)
			}
		}
		for name, d := range latest {
			if _, ok := streams[name]; ok {
				continue
			}
			sctx, end := context.WithCancel(ctx)
			streams[name] = stream{d, end}
			if d.health == nil {
				m.clearHealth(name)
				continue
			}
			wg.Go(func() {
				defer end()
				m.watchDriverHealth(sctx, d)
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-m.health.changed.C():
		case <-timer.C:
		}
		timer.Stop()
		if next := m.expireReports(startupEnd); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// latestDrivers returns the drivers that registered last, by name.
func (m *Manager) latestDrivers() map[string]*driver {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]*driver{}
	for name, list := range m.drivers {
		out[name] = list[len(list)-1]
	}
	return out
}

// notifyHealthLocked makes watchHealth look at drivers and reports again.
func (m *Manager) notifyHealthLocked() {
	m.health.changed.Notify()
}

// watchDriverHealth keeps a stream to a driver open until ctx is done, or the driver says that it has no health
// service.
func (m *Manager) watchDriverHealth(ctx context.Context, d *driver) {
	for {
		err := m.readHealthStream(ctx, d)
		if ctx.Err() != nil {
			return
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			m.cfg.Log.Info("DRA driver does not report the health of its devices", "driver", d.name)
			m.clearHealth(d.name)
			return
		}
		if grpcstatus.Code(err) != codes.Canceled { // not when its connection was closed
			m.cfg.Log.Warn("receive the health of devices", "driver", d.name, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reconnectDelay):
		}
	}
}

func (m *Manager) readHealthStream(ctx context.Context, d *driver) error {
	ctx, end := context.WithCancel(ctx)
	defer end() // also if the stream is abandoned
	defer m.limitReportLifetime(d)
	s, err := d.health.NodeWatchResources(ctx, &healthapi.NodeWatchResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		got, err := s.Recv()
		if err != nil {
			return err
		}
		uids, err := m.updateHealth(d.name, got.GetDevices())
		if err != nil {
			return err
		}
		pause := reportInterval
		if m.notifyPods(uids); len(uids) > 0 {
			pause = changedReportInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause): // a driver that reports without end does not use up a processor
		}
	}
}

// updateHealth applies a driver's report, all of it or nothing, and returns the pods whose devices have changed. A
// device that is not in the report keeps its health until that times out.
func (m *Manager) updateHealth(driver string, list []*healthapi.DeviceHealth) (uids []string, err error) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	reports, known := m.health.byDriver[driver]
	fresh := map[deviceKey]bool{}
	for _, h := range list { // check all of it first
		at := deviceKeyOf(h)
		if _, ok := reports[at]; !ok {
			fresh[at] = true
		}
		if len(reports)+len(fresh) > maxReportedDevices || len(at.pool)+len(at.device) > maxDeviceName {
			return nil, fmt.Errorf("it reports more than %d devices, or one whose name is longer than %d bytes",
				maxReportedDevices, maxDeviceName)
		}
	}
	if !known {
		reports = map[deviceKey]healthReport{}
		m.health.byDriver[driver] = reports
	}
	changed := map[deviceKey]bool{}
	for _, h := range list {
		at := deviceKeyOf(h)
		before, ok := reports[at]
		next := healthReportOf(h, now)
		if !ok || before.health != next.health || before.message != next.message {
			changed[at] = true
		}
		reports[at] = next
	}
	m.notifyHealthLocked()
	if !known {
		return m.podsUsingLocked(driver, nil), nil
	}
	return m.podsUsingLocked(driver, changed), nil
}

func deviceKeyOf(h *healthapi.DeviceHealth) deviceKey {
	return deviceKey{h.GetDevice().GetPoolName(), h.GetDevice().GetDeviceName()}
}

func healthReportOf(deviceHealth *healthapi.DeviceHealth, now time.Time) healthReport {
	r := healthReport{
		health:  corev1.ResourceHealthStatusUnknown,
		message: deviceHealth.GetMessage(),
		until:   now.Add(defaultHealthTimeout),
	}
	switch deviceHealth.GetHealth() {
	case healthapi.HealthStatus_HEALTHY:
		r.health = corev1.ResourceHealthStatusHealthy
	case healthapi.HealthStatus_UNHEALTHY:
		r.health = corev1.ResourceHealthStatusUnhealthy
	case healthapi.HealthStatus_UNKNOWN:
	}
	if s := deviceHealth.GetHealthCheckTimeoutSeconds(); s > 0 {
		r.until = now.Add(time.Duration(min(s, int64(maxHealthTimeout/time.Second))) * time.Second)
	}
	// one byte more than the API takes, so that it is marked as truncated
	if len(r.message) > corev1.ResourceHealthMessageMaxLength+1 {
		r.message = r.message[:corev1.ResourceHealthMessageMaxLength+1]
	}
	return r
}

// limitReportLifetime limits the lifetime of reports to 30 seconds when the stream to the latest driver has ended:
// no driver would correct them.
func (m *Manager) limitReportLifetime(d *driver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if list := m.drivers[d.name]; len(list) > 0 && list[len(list)-1] != d {
		return // its successor reports
	}
	end := time.Now().Add(defaultHealthTimeout)
	for at, r := range m.health.byDriver[d.name] {
		if r.until.After(end) {
			r.until = end
			m.health.byDriver[d.name][at] = r
		}
	}
	m.notifyHealthLocked()
}

// clearHealth records that a driver does not report health: its devices are Unknown.
func (m *Manager) clearHealth(driver string) {
	m.mu.Lock()
	m.health.byDriver[driver] = map[deviceKey]healthReport{}
	uids := m.podsUsingLocked(driver, nil)
	m.mu.Unlock()
	m.notifyPods(uids)
}

// podsUsingLocked returns the pods that use one of the devices of a driver; nil: any.
func (m *Manager) podsUsingLocked(driver string, some map[deviceKey]bool) []string {
	if some != nil && len(some) == 0 {
		return nil
	}
	var out []string
	for _, c := range m.claims {
		if slices.ContainsFunc(c.Devices, func(d device) bool {
			return d.Driver == driver && (some == nil || some[deviceKey{d.Pool, d.Device}])
		}) {
			out = append(out, c.Pods...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (m *Manager) notifyPods(uids []string) {
	for _, uid := range uids {
		m.cfg.HealthChanged(uid)
	}
}

// expireReports removes reports that have timed out, notifies their pods, and returns when the next one times out;
// zero: there is none.
func (m *Manager) expireReports(startupEnd time.Time) (next time.Time) {
	now := time.Now()
	m.mu.Lock()
	var uids []string
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for name, reports := range m.health.byDriver {
		old := map[deviceKey]bool{}
		for at, r := range reports {
			if now.Before(r.until) {
				sooner(r.until)
				continue
			}
			delete(reports, at)
			old[at] = r.health != corev1.ResourceHealthStatusUnknown
		}
		uids = append(uids, m.podsUsingLocked(name, old)...)
		if len(reports) == 0 && len(m.drivers[name]) == 0 && m.health.startupOver {
			delete(m.health.byDriver, name)
		}
	}
	switch {
	case m.health.startupOver:
	case now.Before(startupEnd):
		sooner(startupEnd)
	default:
		m.health.startupOver = true
		for _, c := range m.claims {
			uids = append(uids, c.Pods...)
		}
	}
	m.mu.Unlock()
	slices.Sort(uids)
	m.notifyPods(slices.Compact(uids))
	return next
}

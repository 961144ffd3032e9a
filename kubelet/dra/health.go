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
)

const (
	// maxHealths bounds of how many devices a driver may tell, maxID the names of one, and maxTimeout for how long a report may hold.
	maxHealths = 16 << 10
	maxID      = 1024
	maxTimeout = 24 * time.Hour
	// betweenReports is the least time from one report to the next that is read, and betweenNews that after one which changes the status of pods.
	betweenReports = 100 * time.Millisecond
	betweenNews    = time.Second
	// reconnectAfter is when a stream that broke is opened again, as in Kubernetes.
	reconnectAfter = 5 * time.Second
)

// place is a device of a driver.
type place struct{ pool, device string }

// report is what a driver said last of a device.
type report struct {
	health  corev1.ResourceHealthStatus
	message string
	until   time.Time // then nobody knows
}

// healths is what is known of the health of devices. mu of the Manager guards it.
type healths struct {
	of      map[string]map[place]report // by driver; a driver without an entry was not heard in this life
	settled bool                        // drivers that were there before this life had time to be heard
	news    chan struct{}               // capacity 1: there are other drivers, or other reports
}

// healthOf calls a driver's service of health by the newest version that it has; nil: it has none.
func healthOf(conn *grpc.ClientConn, versions []string) healthapi.DRAResourceHealthClient {
	switch {
	case slices.Contains(versions, healthapi.DRAResourceHealthService):
		return healthapi.NewDRAResourceHealthClient(conn)
	case slices.Contains(versions, healthv1alpha1.DRAResourceHealthService):
		return healthapi.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(conn)}
	}
	return nil
}

// Health is how the devices of a container's claims are, by claim and request as the container names them. A claim is left out as long as
// nobody can know: one of its drivers was not heard yet since the kubelet started.
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
		if list, known := m.healthLocked(of, w.name); known && len(list) > 0 {
			out = append(out, podinfo.Health("claim:"+w.told, list))
		}
	}
	return out
}

func (m *Manager) healthLocked(of *claim, request string) (list []podinfo.DeviceHealth, known bool) {
	for i := range of.Devices {
		d := &of.Devices[i]
		if !d.serves(request) {
			continue
		}
		reports, heard := m.health.of[d.Driver]
		if !heard && !m.health.settled {
			return nil, false
		}
		one := podinfo.DeviceHealth{IDs: d.ids(), Health: corev1.ResourceHealthStatusUnknown}
		if r, ok := reports[place{d.Pool, d.Device}]; ok && time.Now().Before(r.until) {
			one.Health, one.Message = r.health, r.message
		}
		list = append(list, one)
	}
	return list, true
}

// ids are the names by which a status may tell of the device: its first CDI name, as in Kubernetes, else its place.
func (d *device) ids() []string {
	var out []string
	if len(d.CDI) > 0 {
		out = append(out, d.CDI[0])
	}
	at := d.Driver + "/" + d.Pool + "/" + d.Device
	out = append(out, at)
	if d.Share != nil {
		out = append(out, at+"/"+*d.Share)
	}
	return out
}

// followHealth hears the health of devices from each driver that tells it, the one of its name that came last, until ctx is done.
func (m *Manager) followHealth(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	type stream struct {
		of  *driver
		end context.CancelFunc
	}
	streams := map[string]stream{}
	settle := time.Now().Add(m.cfg.Lapse)
	timer := time.NewTimer(m.cfg.Lapse)
	defer timer.Stop()
	for {
		latest := m.latest()
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
				m.silent(name)
				continue
			}
			wg.Go(func() {
				defer end()
				m.hear(sctx, d)
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-m.health.news:
		case <-timer.C:
		}
		timer.Stop()
		if next := m.lapse(settle); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// latest are the drivers that came last, by name.
func (m *Manager) latest() map[string]*driver {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]*driver{}
	for name, list := range m.drivers {
		out[name] = list[len(list)-1]
	}
	return out
}

// healthNewsLocked has followHealth look again.
func (m *Manager) healthNewsLocked() {
	select {
	case m.health.news <- struct{}{}:
	default:
	}
}

// hear keeps a stream to a driver until ctx is done, or the driver says that it does not tell the health of its devices.
func (m *Manager) hear(ctx context.Context, d *driver) {
	for {
		err := m.readReports(ctx, d)
		if ctx.Err() != nil {
			return
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			m.cfg.Log.Info("DRA driver does not tell the health of its devices", "driver", d.name)
			m.silent(d.name)
			return
		}
		if grpcstatus.Code(err) != codes.Canceled { // the driver is given up
			m.cfg.Log.Warn("hear the health of devices", "driver", d.name, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reconnectAfter):
		}
	}
}

func (m *Manager) readReports(ctx context.Context, d *driver) error {
	ctx, end := context.WithCancel(ctx)
	defer end() // of a stream that is given up, too
	defer m.unheard(d)
	s, err := d.health.NodeWatchResources(ctx, &healthapi.NodeWatchResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		got, err := s.Recv()
		if err != nil {
			return err
		}
		uids, err := m.note(d.name, got.GetDevices())
		if err != nil {
			return err
		}
		pause := betweenReports
		if m.tell(uids); len(uids) > 0 {
			pause = betweenNews
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause): // a driver that tells without end has one processor's share no longer
		}
	}
}

// note takes up a driver's report and returns the pods whose devices it changes. A device that it leaves out is as it was, until that is too old.
func (m *Manager) note(driver string, list []*healthapi.DeviceHealth) (uids []string, err error) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	reports, heard := m.health.of[driver]
	fresh := map[place]bool{}
	for _, h := range list { // all of it is checked before any of it counts
		at := placeOf(h)
		if _, ok := reports[at]; !ok {
			fresh[at] = true
		}
		if len(reports)+len(fresh) > maxHealths || len(at.pool)+len(at.device) > maxID {
			return nil, fmt.Errorf("it tells of more than %d devices, or of one whose name is longer than %d bytes", maxHealths, maxID)
		}
	}
	if !heard {
		reports = map[place]report{}
		m.health.of[driver] = reports
	}
	changed := map[place]bool{}
	for _, h := range list {
		at := placeOf(h)
		before, ok := reports[at]
		next := reportOf(h, now)
		if !ok || before.health != next.health || before.message != next.message {
			changed[at] = true
		}
		reports[at] = next
	}
	m.healthNewsLocked()
	if !heard {
		return m.usersLocked(driver, nil), nil
	}
	return m.usersLocked(driver, changed), nil
}

func placeOf(h *healthapi.DeviceHealth) place {
	return place{h.GetDevice().GetPoolName(), h.GetDevice().GetDeviceName()}
}

func reportOf(h *healthapi.DeviceHealth, now time.Time) report {
	r := report{health: corev1.ResourceHealthStatusUnknown, message: h.GetMessage(), until: now.Add(defaultLapse)}
	switch h.GetHealth() {
	case healthapi.HealthStatus_HEALTHY:
		r.health = corev1.ResourceHealthStatusHealthy
	case healthapi.HealthStatus_UNHEALTHY:
		r.health = corev1.ResourceHealthStatusUnhealthy
	case healthapi.HealthStatus_UNKNOWN:
	}
	if s := h.GetHealthCheckTimeoutSeconds(); s > 0 {
		r.until = now.Add(time.Duration(min(s, int64(maxTimeout/time.Second))) * time.Second)
	}
	if len(r.message) > corev1.ResourceHealthMessageMaxLength+1 { // what is told of it says that there was more
		r.message = r.message[:corev1.ResourceHealthMessageMaxLength+1]
	}
	return r
}

// unheard bounds how long reports hold once the stream to the driver that came last has ended: nobody would say that they are no longer true.
func (m *Manager) unheard(d *driver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if list := m.drivers[d.name]; len(list) > 0 && list[len(list)-1] != d {
		return // its successor is heard
	}
	end := time.Now().Add(defaultLapse)
	for at, r := range m.health.of[d.name] {
		if r.until.After(end) {
			r.until = end
			m.health.of[d.name][at] = r
		}
	}
	m.healthNewsLocked()
}

// silent notes that nobody tells the health of a driver's devices.
func (m *Manager) silent(driver string) {
	m.mu.Lock()
	m.health.of[driver] = map[place]report{}
	uids := m.usersLocked(driver, nil)
	m.mu.Unlock()
	m.tell(uids)
}

// usersLocked are the pods that use some devices of a driver; nil: any.
func (m *Manager) usersLocked(driver string, some map[place]bool) []string {
	if some != nil && len(some) == 0 {
		return nil
	}
	var out []string
	for _, c := range m.claims {
		if slices.ContainsFunc(c.Devices, func(d device) bool { return d.Driver == driver && (some == nil || some[place{d.Pool, d.Device}]) }) {
			out = append(out, c.Pods...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (m *Manager) tell(uids []string) {
	for _, uid := range uids {
		m.cfg.HealthChanged(uid)
	}
}

// lapse forgets reports that are too old, has their pods tell it, and says when the next one is; zero: there is none.
func (m *Manager) lapse(settle time.Time) (next time.Time) {
	now := time.Now()
	m.mu.Lock()
	var uids []string
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for name, reports := range m.health.of {
		old := map[place]bool{}
		for at, r := range reports {
			if now.Before(r.until) {
				sooner(r.until)
				continue
			}
			delete(reports, at)
			old[at] = r.health != corev1.ResourceHealthStatusUnknown
		}
		uids = append(uids, m.usersLocked(name, old)...)
		if len(reports) == 0 && len(m.drivers[name]) == 0 && m.health.settled {
			delete(m.health.of, name)
		}
	}
	switch {
	case m.health.settled:
	case now.Before(settle):
		sooner(settle)
	default:
		m.health.settled = true
		for _, c := range m.claims {
			uids = append(uids, c.Pods...)
		}
	}
	m.mu.Unlock()
	slices.Sort(uids)
	m.tell(slices.Compact(uids))
	return next
}

// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

// Register adds a driver. While there are several of one name, for example during an update, the one that registered
// last is called.
func (m *Manager) Register(_ context.Context, info plugin.Info) error {
	if problems := validation.IsDNS1123Subdomain(strings.ToLower(info.Name)); len(
		info.Name) > resourcev1.DriverNameMaxLength || len(problems) > 0 {
		return fmt.Errorf("%.100q is no name of a DRA driver", info.Name)
	}
	if !slices.ContainsFunc(info.Versions, func(v string) bool { return slices.Contains(supportedServices, v) }) {
		return fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %.200s: none of "+
			"services supported by the plugin (%.200q) are supported by the kubelet (%q)",
			info.Name, info.Endpoint, info.Versions, supportedServices)
	}
	conn, err := m.dial(info)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.drivers[info.Name] = append(m.drivers[info.Name], &driver{
		name:   info.Name,
		socket: info.Socket,
		conn:   conn,
		api:    clientOf(conn, info.Versions),
		health: healthClientOf(conn, info.Versions),
	})
	m.notifyHealthLocked()
	delete(m.unregistered, info.Name)
	waiting := slices.Collect(maps.Keys(m.waitingPods[info.Name]))
	delete(m.waitingPods, info.Name)
	m.mu.Unlock()
	for _, uid := range waiting {
		m.cfg.Wake(uid)
	}
	return nil
}

// supportedServices are the supported versions of the API, the preferred one first.
var supportedServices = []string{draapi.DRAPluginService, drav1beta1.DRAPluginService}

// clientOf returns a client of the newest version that a driver has. Calls of earlier versions are converted.
func clientOf(conn *grpc.ClientConn, versions []string) draapi.DRAPluginClient {
	if slices.Contains(versions, draapi.DRAPluginService) {
		return draapi.NewDRAPluginClient(conn)
	}
	return drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(conn)}
}

func (m *Manager) dial(i plugin.Info) (*grpc.ClientConn, error) {
	if i.Endpoint == "" {
		return plugin.Dial(m.cfg.Plugins, i.Socket, m.timed(i.Name))
	}
	rel, _, ok := m.cfg.Dir.Rel(i.Endpoint)
	if !ok || rel == "" {
		return nil, fmt.Errorf("the endpoint %.200q is not below the kubelet's directory, %s or %s", i.Endpoint,
			rootdir.Standard, m.cfg.Dir)
	}
	return plugin.Dial(string(m.cfg.Dir), rel, m.timed(i.Name))
}

// Unregister removes a driver whose socket was removed. If it was the last of its name and none registers in time, its
// ResourceSlices are deleted.
func (m *Manager) Unregister(_ context.Context, info plugin.Info) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.IndexFunc(m.drivers[info.Name], func(d *driver) bool { return d.socket == info.Socket })
	if at < 0 {
		return
	}
	_ = m.drivers[info.Name][at].conn.Close() // running calls end with an error
	m.notifyHealthLocked()
	if m.drivers[info.Name] = slices.Delete(m.drivers[info.Name], at, at+1); len(m.drivers[info.Name]) > 0 {
		return
	}
	delete(m.drivers, info.Name)
	m.unregistered[info.Name] = time.Now()
	m.unregisteredChanged.Notify()
}

// registeredDriver returns the driver of a name. If there is none, the pod is retried when it registers.
func (m *Manager) registeredDriver(name, uid string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := m.drivers[name]; len(of) > 0 {
		return of[len(of)-1], nil
	}
	if m.waitingPods[name] == nil {
		m.waitingPods[name] = map[string]bool{}
	}
	m.waitingPods[name][uid] = true
	return nil, fmt.Errorf("DRA driver %s is not registered", name)
}

// Run watches the health of devices and deletes the ResourceSlices of unregistered drivers until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.watchHealth(ctx) })
	m.wipeSlices(ctx)
}

// wipeSlices deletes the ResourceSlices of drivers that stay unregistered for the wiping delay. After a start of the
// kubelet drivers have the same time to register.
func (m *Manager) wipeSlices(ctx context.Context) {
	timer := time.NewTimer(m.cfg.WipingDelay)
	defer timer.Stop()
	first := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.unregisteredChanged.C():
		case <-timer.C:
			if first {
				first = m.findUnregistered(ctx) != nil
			}
		}
		next := m.wipeDueSlices(ctx)
		if first && (next == 0 || next > m.cfg.WipingDelay) {
			next = m.cfg.WipingDelay
		}
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// findUnregistered adds drivers that have slices of the node and have not registered since the kubelet started.
func (m *Manager) findUnregistered(ctx context.Context) error {
	list, err := m.cfg.API.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: m.selector("")})
	if err != nil {
		m.cfg.Log.Debug("list the node's resource slices", "err", err)
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range list.Items {
		name := list.Items[i].Spec.Driver
		if _, known := m.unregistered[name]; !known && len(m.drivers[name]) == 0 {
			m.unregistered[name] = time.Now().Add(-m.cfg.WipingDelay)
		}
	}
	return nil
}

// wipeDueSlices deletes the slices of drivers whose wiping delay is over, and returns the time until the next one's is;
// 0: there is none.
func (m *Manager) wipeDueSlices(ctx context.Context) (next time.Duration) {
	m.mu.Lock()
	var due []string
	for name, since := range m.unregistered {
		left := m.cfg.WipingDelay - time.Since(since)
		if left <= 0 {
			due = append(due, name)
		} else if next == 0 || left < next {
			next = left
		}
	}
	m.mu.Unlock()
	for _, name := range due {
		err := m.cfg.API.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
			FieldSelector: m.selector(name),
		})
		if err != nil {
			m.cfg.Log.Warn("delete resource slices of a driver that has gone", "driver", name, "err", err)
			next = m.cfg.WipingDelay
			continue
		}
		m.cfg.Log.Info("resource slices of a driver that has gone are deleted", "driver", name)
		m.mu.Lock()
		if len(m.drivers[name]) == 0 {
			delete(m.unregistered, name)
		}
		m.mu.Unlock()
	}
	return next
}

func (m *Manager) selector(driver string) string {
	s := fields.Set{resourcev1.ResourceSliceSelectorNodeName: m.cfg.NodeName}
	if driver != "" {
		s[resourcev1.ResourceSliceSelectorDriver] = driver
	}
	return s.String()
}

// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/kubelet/plugin"
)

// Register registers a driver: it calls NodeGetInfo and writes the answer into the node's objects. It replaces a driver
// of the same name with another socket.
func (m *Mounter) Register(ctx context.Context, i plugin.Info) error {
	if err := acceptable(i); err != nil {
		return err
	}
	driver, err := dial(i.Name, i.Socket, i.Endpoint, m.cfg.Dir)
	if err != nil {
		return err
	}
	info, err := call(ctx, driver.within, driver.node.NodeGetInfo, &csiapi.NodeGetInfoRequest{})
	if err == nil {
		err = driver.keepInfo(info)
	}
	if err != nil {
		driver.close()
		return fmt.Errorf("driver %s: NodeGetInfo: %w", driver.name, err)
	}
	old := m.drivers.add(driver)
	if err := m.published.write(ctx); err != nil {
		m.drivers.replace(driver, old)
		driver.close()
		return err
	}
	if old != nil {
		old.close()
	}
	m.wakeWaiting(driver.name)
	m.counts.registered.Notify()
	return nil
}

// Unregister removes a driver whose socket is gone. Its mounts stay until it registers again and can unmount them.
func (m *Mounter) Unregister(ctx context.Context, info plugin.Info) {
	d := m.drivers.get(info.Name)
	if d == nil || d.socket != info.Socket || !m.drivers.replace(d, nil) {
		return // another driver of this name has registered
	}
	d.close()
	m.cfg.Log.Info("csi driver is gone", "driver", info.Name)
	if err := m.published.withdraw(ctx, info.Name); err != nil {
		m.cfg.Log.Warn("take csi driver from the node", "driver", info.Name, "err", err)
	}
}

// wakeWaiting wakes the pods that wait for a driver, and starts the unstaging of unused volumes.
func (m *Mounter) wakeWaiting(name string) {
	for _, uid := range m.drivers.waiters(name) {
		m.cfg.Wake(uid)
	}
	m.kick.Notify()
}

// acceptable checks a registrar's data about a driver.
func acceptable(i plugin.Info) error {
	if len(i.Name) > 63 || len(validation.IsDNS1123Subdomain(strings.ToLower(i.Name))) > 0 {
		return fmt.Errorf("%.100q is no name of a CSI driver: up to 63 letters, digits, dashes and dots", i.Name)
	}
	for _, v := range i.Versions {
		if major, _, _ := strings.Cut(strings.TrimPrefix(v, "v"), "."); major == "1" {
			return nil
		}
	}
	return fmt.Errorf("driver %s speaks the versions %.100q of CSI, and none of 1.x", i.Name, i.Versions)
}

const (
	maxNodeID   = 256 // as CSINode allows
	maxSegments = 64
)

// keepInfo checks and keeps a driver's answer to NodeGetInfo.
func (d *driver) keepInfo(info *csiapi.NodeGetInfoResponse) error {
	d.id = info.GetNodeId()
	d.segments = info.GetAccessibleTopology().GetSegments()
	switch {
	case d.id == "":
		return errors.New("the node has no id")
	case len(d.id) > maxNodeID:
		return fmt.Errorf("the node's id has %d bytes, more than %d", len(d.id), maxNodeID)
	case len(d.segments) > maxSegments:
		return fmt.Errorf("the topology has %d segments, more than %d", len(d.segments), maxSegments)
	}
	for k, v := range d.segments {
		if problems := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(problems) > 0 {
			return fmt.Errorf("topology %.100q=%.100q: %s", k, v, problems[0])
		}
	}
	return d.takeMax(info.GetMaxVolumesPerNode())
}

// takeMax keeps how many volumes the node takes.
func (d *driver) takeMax(most int64) error {
	if most < 0 || most > 1<<31-1 {
		return fmt.Errorf("max_volumes_per_node is %d", most)
	}
	d.max.Store(most)
	return nil
}

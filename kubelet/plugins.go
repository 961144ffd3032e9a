// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"keelson/client"
	"keelson/kubelet/csi"
	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/node"
	"keelson/kubelet/plugin"
	"keelson/kubelet/pod"
	"keelson/kubelet/podresources"
	"keelson/kubelet/podsapi"
	"keelson/kubelet/refs"
	"keelson/kubelet/rootdir"
	"keelson/kubelet/volume"
)

// plugins are the managers of what drivers give to pods.
type plugins struct {
	csi          *csi.Mounter
	claims       *dra.Manager // devices of claims
	devices      *deviceplugin.Manager
	podResources *podresources.Server
	podsAPI      *podsapi.Server
	sockets      *plugin.Registry // by which drivers of csi and claims register
}

func newPlugins(cfg *Config, self *node.Self, table *workers, objects *refs.Store, events *client.Events) plugins {
	dir := rootdir.Dir(cfg.RootDir)
	sockets := volume.Plugins(cfg.RootDir)
	healthChanged := func(uid string) { table.notify(uid, pod.Nothing) }
	mounter := csi.New(csi.Config{
		Dir:         dir,
		NodeName:    cfg.NodeName,
		API:         cfg.Client.Interface,
		Objects:     objects,
		Node:        self.Node,
		NodeChanged: self.Changed,
		Wake:        table.notifyRefs,
		Events:      events,
		Log:         cfg.Log,
	})
	claims := dra.New(dra.Config{
		Dir:           dir,
		Plugins:       sockets,
		NodeName:      cfg.NodeName,
		API:           cfg.Client.Interface,
		Log:           cfg.Log,
		Wake:          func(uid string) { table.notify(uid, pod.NodeChanged) },
		HealthChanged: healthChanged,
	})
	devices := deviceplugin.New(deviceplugin.Config{
		Dir:              dir,
		ResourcesChanged: self.Changed,
		HealthChanged:    healthChanged,
		Log:              cfg.Log,
	})
	return plugins{
		csi:     mounter,
		claims:  claims,
		devices: devices,
		podResources: podresources.New(podresources.Config{
			Dir:     dir,
			Pods:    podResourcesPods{table},
			Devices: devices,
			Claims:  claims,
		}),
		podsAPI: podsapi.New(dir, nodePods{table}),
		sockets: plugin.New(sockets, map[string]plugin.Handler{"CSIPlugin": mounter, "DRAPlugin": claims}, cfg.Log),
	}
}

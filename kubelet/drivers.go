// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/csi"
	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

// newDrivers makes what the node's CSI drivers register with, and mount by, and those of devices.
func (k *Kubelet) newDrivers() {
	k.volumes.CSI = csi.New(csi.Config{
		Dir: rootdir.Dir(k.cfg.RootDir), NodeName: k.cfg.NodeName, API: k.cfg.Client.Interface, Objects: k.refs, Node: k.node.Node,
		NodeChanged: k.node.Changed, Wake: k.wakeRefs, Events: k.events, Log: k.cfg.Log,
	})
	k.devices = dra.New(dra.Config{
		Dir: rootdir.Dir(k.cfg.RootDir), Plugins: k.volumes.Plugins(), NodeName: k.cfg.NodeName, API: k.cfg.Client.Interface, Log: k.cfg.Log,
		Wake: func(uid string) {
			if w := k.worker(uid); w != nil {
				w.NodeChanged()
			}
		},
	})
	k.devicePlugins = deviceplugin.New(deviceplugin.Config{Dir: rootdir.Dir(k.cfg.RootDir), Changed: k.node.Changed, Log: k.cfg.Log})
	k.plugins = plugin.New(k.volumes.Plugins(), map[string]plugin.Handler{"CSIPlugin": k.volumes.CSI, "DRAPlugin": k.devices}, k.cfg.Log)
}

// volumesInUse are the attached volumes that the node uses.
func (k *Kubelet) volumesInUse() []corev1.UniqueVolumeName {
	if k.volumes == nil {
		return nil
	}
	return k.volumes.CSI.InUse()
}

// pluginResources are what device plugins say that the node has.
func (k *Kubelet) pluginResources() (capacity, allocatable corev1.ResourceList) {
	return k.devicePlugins.Resources()
}

// nodeUpdated passes on a new version of the Node object.
func (k *Kubelet) nodeUpdated(n *corev1.Node) {
	if k.volumes != nil {
		k.volumes.CSI.NodeUpdated(n)
	}
}

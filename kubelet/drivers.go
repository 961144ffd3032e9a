// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/csi"
	"keelson/kubelet/plugin"
	"keelson/kubelet/rootdir"
)

// newCSI makes what the node's CSI drivers register with, and mount by.
func (k *Kubelet) newCSI() {
	k.volumes.CSI = csi.New(csi.Config{
		Dir: rootdir.Dir(k.cfg.RootDir), NodeName: k.cfg.NodeName, API: k.cfg.Client.Interface, Objects: k.refs, Node: k.node.Node,
		NodeChanged: k.node.Changed, Wake: k.wakeRefs, Events: k.events, Log: k.cfg.Log,
	})
	k.plugins = plugin.New(k.volumes.Plugins(), map[string]plugin.Handler{"CSIPlugin": k.volumes.CSI}, k.cfg.Log)
}

// volumesInUse are the attached volumes that the node uses.
func (k *Kubelet) volumesInUse() []corev1.UniqueVolumeName {
	if k.volumes == nil {
		return nil
	}
	return k.volumes.CSI.InUse()
}

// heardNode passes on that the Node object has changed.
func (k *Kubelet) heardNode(n *corev1.Node) {
	if k.volumes != nil {
		k.volumes.CSI.NodeHeard(n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/csi"
	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/plugin"
	"keelson/kubelet/pod"
	"keelson/kubelet/podresources"
	"keelson/kubelet/rootdir"
)

// newPluginManagers makes the managers of CSI drivers, DRA drivers and device plugins.
func (k *Kubelet) newPluginManagers() {
	k.volumes.CSI = csi.New(csi.Config{
		Dir:         rootdir.Dir(k.cfg.RootDir),
		NodeName:    k.cfg.NodeName,
		API:         k.cfg.Client.Interface,
		Objects:     k.refs,
		Node:        k.node.Node,
		NodeChanged: k.node.Changed,
		Wake:        k.wakeForRefs,
		Events:      k.events,
		Log:         k.cfg.Log,
	})
	k.devices = dra.New(dra.Config{
		Dir:      rootdir.Dir(k.cfg.RootDir),
		Plugins:  k.volumes.Plugins(),
		NodeName: k.cfg.NodeName,
		API:      k.cfg.Client.Interface,
		Log:      k.cfg.Log,
		Wake: func(uid string) {
			if w := k.worker(uid); w != nil {
				w.Notify(pod.NodeChanged)
			}
		},
		HealthChanged: k.healthChanged,
	})
	k.devicePlugins = deviceplugin.New(deviceplugin.Config{
		Dir:              rootdir.Dir(k.cfg.RootDir),
		ResourcesChanged: k.node.Changed,
		HealthChanged:    k.healthChanged,
		Log:              k.cfg.Log,
	})
	k.podResources = podresources.New(podresources.Config{
		Dir:     rootdir.Dir(k.cfg.RootDir),
		Pods:    podResourcesPods{k},
		Devices: k.devicePlugins,
		Claims:  k.devices,
	})
	k.plugins = plugin.New(k.volumes.Plugins(),
		map[string]plugin.Handler{"CSIPlugin": k.volumes.CSI, "DRAPlugin": k.devices}, k.cfg.Log)
}

// healthChanged updates the health of devices in a pod's status.
func (k *Kubelet) healthChanged(uid string) {
	if w := k.worker(uid); w != nil {
		w.Notify(pod.Nothing)
	}
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

// podResourcesPods are the workers' pods for the PodResources API, without orphaned pods.
type podResourcesPods struct{ k *Kubelet }

func (t podResourcesPods) pods(which func(*pod.Worker, *corev1.Pod) bool) []*corev1.Pod {
	var out []*corev1.Pod
	for _, w := range t.k.allWorkers() {
		if p := w.Pod(); len(p.Spec.Containers) > 0 && which(w, p) {
			out = append(out, p)
		}
	}
	return out
}

// Active are the pods of which a container runs or may still run: a pod has a terminal phase only when none does.
func (t podResourcesPods) Active() []*corev1.Pod {
	return t.pods(func(w *pod.Worker, p *corev1.Pod) bool {
		return !w.Left() && !podkind.TerminalPhase(p.Status.Phase)
	})
}

// All are the node's pods.
func (t podResourcesPods) All() []*corev1.Pod {
	return t.pods(func(*pod.Worker, *corev1.Pod) bool { return true })
}

// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
)

// podRef is a pod's reference in events. A static pod is named by the UID in its mirror's annotation, which `kubectl
// describe` looks for.
func podRef(pod *corev1.Pod) *corev1.ObjectReference {
	uid := pod.UID
	if hash := pod.Annotations[podinfo.AnnotationHash]; podinfo.Static(pod) && hash != "" {
		uid = types.UID(hash)
	}
	return &corev1.ObjectReference{
		APIVersion:      "v1",
		Kind:            "Pod",
		Namespace:       pod.Namespace,
		Name:            pod.Name,
		UID:             uid,
		ResourceVersion: pod.ResourceVersion,
	}
}

// containerRef is a container's reference in events.
func containerRef(p *corev1.Pod, c *corev1.Container, k podinfo.Kind) *corev1.ObjectReference {
	r := podRef(p)
	r.FieldPath = "spec." + k.Field() + "{" + c.Name + "}"
	return r
}

// announce records an event for each new reason why a container waits.
func (c *containers) announce(events record.EventRecorder, in decide.Input, plan decide.Plan) {
	for container, k := range podinfo.All(in.Pod) {
		why := plan.Waiting[container.Name]
		said := why.Reason
		if cur := in.Observed.Latest(container.Name); why.Reason == "CrashLoopBackOff" && cur != nil {
			said += cur.ID
		}
		record := c.name(container.Name)
		if record.said == said {
			continue
		}
		record.said = said
		ref := containerRef(in.Pod, container, k)
		switch why.Reason {
		case "CrashLoopBackOff":
			events.Eventf(ref, corev1.EventTypeWarning, "BackOff",
				"Back-off restarting failed container %s in pod %s", container.Name, podinfo.FullName(in.Pod))
		case reasonBackoff:
			events.Eventf(ref, corev1.EventTypeNormal, "BackOff", "Back-off pulling image %q", why.Image)
			events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+why.Reason)
		case "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError":
			events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+why.Reason)
		case reasonConfig, reasonCreate:
			events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+why.Message)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package text

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podapi "keelson/api/core/pod"
)

// help are the commands that help a pod, each with what it does. Only what the API says is used.
func (a *Around) help() []string {
	switch {
	case a.Pod.DeletionTimestamp != nil:
		return a.helpToGo()
	case a.NodeGone || podapi.Ready(a.Pod) || a.Pod.Status.Phase == corev1.PodSucceeded:
		return nil
	case a.Pod.Spec.NodeName == "":
		return a.helpToSchedule()
	}
	pod := a.Pod
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if out := a.helpContainer(&list[i]); out != "" {
				return []string{out}
			}
		}
	}
	return nil
}

// helpToGo helps a pod that is being deleted.
func (a *Around) helpToGo() []string {
	pod := a.Pod
	node := a.nodeCondition()
	switch {
	case a.NodeGone:
	case node != nil && node.Status == corev1.ConditionUnknown:
		return []string{fmt.Sprintf("`kubectl delete pod %s --grace-period=0 --force` removes it from the API, when the "+
			"machine is off for certain", a.named())}
	case len(a.running()) > 0 && a.Pod.DeletionTimestamp.After(a.Now):
		return []string{fmt.Sprintf("`kubectl delete pod %s --now` shortens its grace period to 1 s", a.named())}
	case len(a.running()) == 0 && len(pod.Finalizers) > 0:
		return []string{fmt.Sprintf("`kubectl patch pod %s --type=merge -p '{\"metadata\":{\"finalizers\":null}}'` "+
			"releases it, when no controller will", a.named())}
	}
	return nil
}

// named is the pod as an argument of kubectl.
func (a *Around) named() string { return a.Pod.Name + " -n " + a.Pod.Namespace }

// helpToSchedule helps a pod without a node where the scheduler does not say what would help.
func (a *Around) helpToSchedule() []string {
	pod := a.Pod
	if len(pod.Spec.SchedulingGates) > 0 {
		return []string{fmt.Sprintf("`kubectl patch pod %s --type=merge -p '{\"spec\":{\"schedulingGates\":null}}'` lets "+
			"the scheduler have it, when no controller will", a.named())}
	}
	c := podapi.Condition(pod, corev1.PodScheduled)
	if c == nil || !strings.Contains(strings.ToLower(c.Message), "persistentvolumeclaim") {
		return a.Refusing
	}
	var out []string
	for _, claim := range podapi.Claims(pod) {
		out = append(out, fmt.Sprintf("`keelson why pvc/%s -n %s` says what the claim lacks", claim, pod.Namespace))
	}
	return out
}

// missing matches what kubelets say of an object that a container or a volume needs.
var missing = regexp.MustCompile(`(?i)\b(configmap|secret) "([a-z0-9.-]+)" not found`)

// helpContainer helps a container that does not run, or is not ready; empty: nothing is known.
func (a *Around) helpContainer(status *corev1.ContainerStatus) string {
	logs := fmt.Sprintf("`kubectl logs %s -c %s", a.named(), status.Name)
	waiting := status.State.Waiting
	switch {
	case status.Ready || status.State.Terminated != nil && status.State.Terminated.ExitCode == 0:
		return ""
	case status.State.Running != nil:
		return logs + "` shows what it says"
	case status.State.Terminated != nil:
		return logs + "` shows its last words"
	case waiting == nil:
		return ""
	case strings.Contains(waiting.Reason, "Image"):
		return fmt.Sprintf("`kubectl set image %s %s=IMAGE -n %s` gives it another image", a.workload(), status.Name,
			a.Pod.Namespace)
	case status.LastTerminationState.Terminated != nil:
		return logs + " --previous` shows the last words of its last run"
	}
	text := waiting.Message
	r := &reasons{a: a}
	if w := r.newest(aboutPod); w != nil {
		text += w.Message
	}
	m := missing.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	kind := strings.ToLower(m[1])
	if kind == "secret" {
		kind = "secret generic"
	}
	return fmt.Sprintf("`kubectl create %s %s -n %s --from-literal=KEY=VALUE` makes what it needs", kind, m[2],
		a.Pod.Namespace)
}

// workload is what has the pod's template, as an argument of kubectl. The name of a Deployment's ReplicaSet is that of
// the Deployment and a hash.
func (a *Around) workload() string {
	by := metav1.GetControllerOf(a.Pod)
	if by == nil {
		return "pod/" + a.Pod.Name
	}
	hash := a.Pod.Labels["pod-template-hash"]
	if name, ok := strings.CutSuffix(by.Name, "-"+hash); by.Kind == "ReplicaSet" && hash != "" && ok {
		return "deployment/" + name
	}
	return strings.ToLower(by.Kind) + "/" + by.Name
}

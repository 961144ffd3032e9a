// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/eviction"
	"keelson/kubelet/metrics"
	"keelson/kubelet/node"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
)

// admission decides which pods may run on the node, and counts what those have that may.
type admission struct {
	node         *node.Keeper
	workers      *workers
	pressure     *eviction.Manager
	sysctls      *sysctls
	appArmorFile string
	events       record.EventRecorder
	log          *slog.Logger
	client       kubernetes.Interface
	metrics      *metrics.Metrics

	mu       sync.Mutex
	admitted map[string]*corev1.Pod // by uid
	resizes  resizes
}

// Admit rejects a pod that does not fit the node with the pods it has admitted, and otherwise reserves its resources.
//
// For a critical pod it preempts others; it is to be called again when the returned channels are closed.
func (a *admission) Admit(ctx context.Context, p *corev1.Pod) (end *decide.End, preempted []<-chan struct{}) {
	node := a.node.Node()
	if reason, _ := checkNode(p, node); reason != "" {
		node = a.nodeNow(ctx, node)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	others := a.activePodsLocked(p)
	reason, msg := a.underPressure(p)
	if reason == "" {
		reason, msg = a.checkSupported(p, node)
	}
	if reason == "" {
		reason, msg = checkFit(p, node, a.node.Allocatable(), others)
		if strings.HasPrefix(reason, "OutOf") && podinfo.Critical(p) {
			if reason, msg, preempted = a.preemptLocked(p, others); preempted != nil {
				return nil, preempted
			}
		}
	}
	if reason != "" {
		a.events.Event(&corev1.ObjectReference{
			APIVersion: "v1",
			Kind:       "Pod",
			Namespace:  p.Namespace,
			Name:       p.Name,
			UID:        p.UID,
		},
			corev1.EventTypeWarning, reason, strings.TrimPrefix(msg, "Pod was rejected: "))
		return &decide.End{
			Phase:    corev1.PodFailed,
			Reason:   reason,
			Message:  msg,
			Rejected: true,
		}, nil
	}
	a.admitted[string(p.UID)] = p
	return nil, nil
}

// nodeNow returns the node as the API server has it: the watch may be late with the label for which a pod was bound.
// Without an answer it returns what is known.
func (a *admission) nodeNow(ctx context.Context, known *corev1.Node) *corev1.Node {
	ctx, cancel := context.WithTimeout(ctx, readNodeLimit)
	defer cancel()
	node, err := a.client.CoreV1().Nodes().Get(ctx, a.node.Ref().Name, metav1.GetOptions{})
	if err != nil {
		a.log.Warn("read the node again before a pod is rejected", "err", err)
		return known
	}
	return node
}

// readNodeLimit is how long a pod's admission waits for the API server's version of the node.
const readNodeLimit = 10 * time.Second

// checkSupported returns why the node cannot run such a pod at all; reason is empty when it can.
func (a *admission) checkSupported(p *corev1.Pod, node *corev1.Node) (reason, message string) {
	if err := a.sysctls.check(p); err != nil {
		return reject("SysctlForbidden", "%v", err)
	}
	if os, ok := p.Labels[corev1.LabelOSStable]; ok && os != string(corev1.Linux) {
		return reject("PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if os := p.Spec.OS; os != nil && os.Name != corev1.Linux {
		return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	if usesAppArmor(p) && !appArmorEnabled(a.appArmorFile) {
		return reject("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
	}
	if sc := p.Spec.SecurityContext; sc != nil && sc.SupplementalGroupsPolicy != nil &&
		*sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict &&
		node != nil && (node.Status.Features == nil || node.Status.Features.SupplementalGroupsPolicy == nil ||
		!*node.Status.Features.SupplementalGroupsPolicy) {
		return reject("SupplementalGroupsPolicyNotSupported",
			"SupplementalGroupsPolicy=%s is not supported in this node", corev1.SupplementalGroupsPolicyStrict)
	}
	return "", ""
}

// activePodsLocked returns the other pods that use resources of the node. Pods that the API server has no more are not
// among them, though some may still be stopping: the scheduler has given their room to others.
func (a *admission) activePodsLocked(p *corev1.Pod) []*corev1.Pod {
	var others []*corev1.Pod
	for uid, o := range a.admitted {
		w := a.workers.find(uid)
		if w == nil {
			delete(a.admitted, uid)
			continue
		}
		if uid != string(p.UID) && !w.IsGone() && !w.Left() && !podkind.TerminalPhase(w.Pod().Status.Phase) {
			others = append(others, o)
		}
	}
	return others
}

// Adopt adds a pod that an earlier kubelet process has admitted.
func (a *admission) Adopt(p *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.admitted[string(p.UID)] = p
}

// forget gives back what a pod has of which nothing is left.
func (a *admission) forget(uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.admitted, uid)
	a.resizes.forget(uid)
	a.resizeWaitingLocked(func(waitingResize) bool { return true })
}

// checkFit returns why a pod does not fit; reason is empty when it does. node may be nil: then only resources are
// checked.
func checkFit(
	p *corev1.Pod, node *corev1.Node, allocatable corev1.ResourceList, others []*corev1.Pod,
) (reason, message string) {
	if l := insufficientResources(p, node, allocatable, others); len(l) > 0 {
		return reject("OutOf"+string(l[0].name), "Node didn't have enough resource: %s, requested: %d, used: %d, "+
			"capacity: %d", l[0].name, l[0].requested, l[0].used, l[0].capacity)
	}
	if port := conflictingHostPort(p, others); port != 0 {
		return reject("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod "+
			"ports")
	}
	return checkNode(p, node)
}

// checkNode returns why the node's labels and taints keep a pod from it; reason is empty when they do not. node may be
// nil.
func checkNode(p *corev1.Pod, node *corev1.Node) (reason, message string) {
	if node == nil || podinfo.Static(p) {
		return "", ""
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node); err != nil || !ok {
		return reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node "+
			"affinity/selector")
	}
	noExecute := func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
	if t, untolerated := schedcorev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints,
		p.Spec.Tolerations,
		noExecute, false); untolerated {
		return reject("TaintToleration", "Predicate TaintToleration failed: node(s) had untolerated taint {%s: %s}",
			t.Key, t.Value)
	}
	return "", ""
}

// amount is a quantity in the units of the messages: milli-CPUs, bytes.
func amount(name corev1.ResourceName, q interface {
	MilliValue() int64
	Value() int64
},
) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// conflictingHostPort returns a host port that another pod uses; 0: none.
func conflictingHostPort(p *corev1.Pod, others []*corev1.Pod) int32 {
	wanted := podkind.HostPorts(p)
	for _, o := range others {
		for _, taken := range podkind.HostPorts(o) {
			if i := slices.IndexFunc(wanted, taken.Conflicts); i >= 0 {
				return wanted[i].Port
			}
		}
	}
	return 0
}

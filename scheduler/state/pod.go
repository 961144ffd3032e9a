// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podkind "keelson/api/core/pod"
)

var (
	defaultCPU    = resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI)
	defaultMemory = resource.NewQuantity(DefaultMemory, resource.BinarySI)
)

// PodInfo is a pod with the values that plugins need, computed once. It is immutable; the Pod is shared (P4).
type PodInfo struct {
	Pod *corev1.Pod
	Key string // namespace/name
	// Request is the sum of the pod's requests. ScoreCPU and ScoreMemory include defaults for containers without a
	// request (NonZeroRequested in kube-scheduler).
	Request     Resource
	ScoreCPU    int64
	ScoreMemory int64
	Priority    int32
	Ports       []podkind.HostPort
	// Uses are the keys of the claims (ClaimUse) and disks (DiskUse) of the pod.
	Uses []string
	// The pod's inter-pod terms, parsed.
	Affinity, AntiAffinity                   []*Term
	PreferredAffinity, PreferredAntiAffinity []WeightedTerm
	// Err is set if a term cannot be parsed or there are too many rules. Such a pod cannot be scheduled.
	Err error
}

// Written returns a copy with the pod that a write returned: no rule of the pod depends on what changed.
func (p *PodInfo) Written(pod *corev1.Pod) *PodInfo {
	written := *p
	written.Pod = pod
	return &written
}

// NewPodInfo computes the PodInfo of a pod.
func NewPodInfo(pod *corev1.Pod) *PodInfo {
	info := &PodInfo{Pod: pod, Key: pod.Namespace + "/" + pod.Name}
	info.Request, info.ScoreCPU, info.ScoreMemory = requests(pod)
	info.Priority = Priority(pod)
	info.Ports = podkind.HostPorts(pod)
	info.Uses = uses(pod)
	if info.Err = checkRuleCount(&pod.Spec); info.Err != nil {
		return info
	}
	if a := pod.Spec.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		info.Err = info.parseTerms(a)
	}
	return info
}

// Priority returns spec.priority, 0 if it is not set.
func Priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func (p *PodInfo) parseTerms(a *corev1.Affinity) (err error) {
	if pa := a.PodAffinity; pa != nil {
		if p.Affinity, err = newTerms(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("pod affinity: %w", err)
		}
		if p.PreferredAffinity, err = newWeightedTerms(p.Pod,
			pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferred pod affinity: %w", err)
		}
	}
	if pa := a.PodAntiAffinity; pa != nil {
		if p.AntiAffinity, err = newTerms(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("pod anti-affinity: %w", err)
		}
		if p.PreferredAntiAffinity, err = newWeightedTerms(p.Pod,
			pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferred pod anti-affinity: %w", err)
		}
	}
	return nil
}

// hasTerms reports whether the pod has inter-pod terms.
func (p *PodInfo) hasTerms() bool {
	return len(p.Affinity)+len(p.AntiAffinity)+len(p.PreferredAffinity)+len(p.PreferredAntiAffinity) > 0
}

// NormalImage returns an image name as nodes report it: with a tag or digest.
func NormalImage(name string) string {
	if strings.LastIndexByte(name, ':') <= strings.LastIndexByte(name, '/') {
		return name + ":latest"
	}
	return name
}

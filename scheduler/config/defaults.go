// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func pointTo[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// setDefaults sets kube-scheduler's defaults.
func setDefaults(configuration *configv1.KubeSchedulerConfiguration) {
	pointTo(&configuration.Parallelism, 16)
	if len(configuration.Profiles) == 0 {
		configuration.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	if len(configuration.Profiles) == 1 {
		pointTo(&configuration.Profiles[0].SchedulerName, corev1.DefaultSchedulerName)
	}
	pointTo(&configuration.PercentageOfNodesToScore, 0)
	pointTo(&configuration.PodInitialBackoffSeconds, 1)
	pointTo(&configuration.PodMaxBackoffSeconds, 10)
	l := &configuration.LeaderElection
	orDefault(&l.ResourceLock, "leases")
	orDefault(&l.ResourceNamespace, "kube-system")
	orDefault(&l.ResourceName, "kube-scheduler")
	orDefault(&l.LeaseDuration, metav1.Duration{Duration: 15 * time.Second})
	orDefault(&l.RenewDeadline, metav1.Duration{Duration: 10 * time.Second})
	orDefault(&l.RetryPeriod, metav1.Duration{Duration: 2 * time.Second})
	pointTo(&l.LeaderElect, true)
	orDefault(&configuration.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	orDefault(&configuration.ClientConnection.QPS, 50)
	orDefault(&configuration.ClientConnection.Burst, 100)
	pointTo(&configuration.EnableProfiling, true)
	if *configuration.EnableProfiling {
		pointTo(&configuration.EnableContentionProfiling, true)
	}
	for i := range configuration.Extenders {
		orDefault(&configuration.Extenders[i].HTTPTimeout, metav1.Duration{Duration: defaultExtenderTimeout})
	}
}

const defaultExtenderTimeout = 5 * time.Second

// emptyArgs returns empty arguments of an in-tree plugin; nil: it has none, or the plugin is not in-tree.
func emptyArgs(plugin string) runtime.Object {
	switch plugin {
	case "DefaultPreemption":
		return &configv1.DefaultPreemptionArgs{}
	case "InterPodAffinity":
		return &configv1.InterPodAffinityArgs{}
	case "NodeAffinity":
		return &configv1.NodeAffinityArgs{}
	case "NodeResourcesBalancedAllocation":
		return &configv1.NodeResourcesBalancedAllocationArgs{}
	case "NodeResourcesFit":
		return &configv1.NodeResourcesFitArgs{}
	case "PodTopologySpread":
		return &configv1.PodTopologySpreadArgs{}
	case "VolumeBinding":
		return &configv1.VolumeBindingArgs{}
	case "DynamicResources":
		return &configv1.DynamicResourcesArgs{}
	default:
		return nil
	}
}

func defaultArgs(plugin string) runtime.Object {
	a := emptyArgs(plugin)
	if a != nil {
		setArgsDefaults(a)
	}
	return a
}

func setArgsDefaults(o runtime.Object) {
	switch a := o.(type) {
	case *configv1.DefaultPreemptionArgs:
		pointTo(&a.MinCandidateNodesPercentage, 10)
		pointTo(&a.MinCandidateNodesAbsolute, 100)
	case *configv1.InterPodAffinityArgs:
		pointTo(&a.HardPodAffinityWeight, 1)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		a.Resources = resources(a.Resources)
	case *configv1.NodeResourcesFitArgs:
		pointTo(&a.ScoringStrategy, configv1.ScoringStrategy{Type: configv1.LeastAllocated})
		a.ScoringStrategy.Resources = resources(a.ScoringStrategy.Resources)
	case *configv1.PodTopologySpreadArgs:
		orDefault(&a.DefaultingType, configv1.SystemDefaulting)
	case *configv1.VolumeBindingArgs:
		pointTo(&a.BindTimeoutSeconds, 600)
		if len(a.Shape) == 0 {
			a.Shape = []configv1.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
		}
	case *configv1.DynamicResourcesArgs:
		pointTo(&a.FilterTimeout, metav1.Duration{Duration: configv1.DynamicResourcesFilterTimeoutDefault})
		pointTo(&a.BindingTimeout, metav1.Duration{Duration: configv1.DynamicResourcesBindingTimeoutDefault})
	}
}

func resources(in []configv1.ResourceSpec) []configv1.ResourceSpec {
	if len(in) == 0 {
		return []configv1.ResourceSpec{
			{Name: string(corev1.ResourceCPU), Weight: 1},
			{Name: string(corev1.ResourceMemory), Weight: 1},
		}
	}
	for i := range in {
		orDefault(&in[i].Weight, 1)
	}
	return in
}

// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

var serviceMeter = &Meter{
	Tracks: func(n corev1.ResourceName) bool {
		return slices.Contains([]corev1.ResourceName{
			"count/services", corev1.ResourceServices, corev1.ResourceServicesNodePorts,
			corev1.ResourceServicesLoadBalancers,
		}, n)
	},
	Usage:    serviceUsage,
	OnUpdate: true,
}

// serviceUsage goes by what the service asks for: its node ports may not be allocated yet.
func serviceUsage(obj runtime.Object, _ time.Time) corev1.ResourceList {
	service, ok := obj.(*corev1.Service)
	if !ok {
		return nil
	}
	ports := 0
	balancers := 0
	switch service.Spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(service.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		ports = len(service.Spec.Ports)
		balancers = 1
		if own := service.Spec.AllocateLoadBalancerNodePorts; own != nil && !*own {
			ports = 0
			for i := range service.Spec.Ports {
				if service.Spec.Ports[i].NodePort != 0 {
					ports++
				}
			}
		}
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName:
	}
	return corev1.ResourceList{
		"count/services":                     one(),
		corev1.ResourceServices:              one(),
		corev1.ResourceServicesNodePorts:     *resource.NewQuantity(int64(ports), resource.DecimalSI),
		corev1.ResourceServicesLoadBalancers: *resource.NewQuantity(int64(balancers), resource.DecimalSI),
	}
}

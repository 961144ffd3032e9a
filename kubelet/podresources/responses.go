// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	apiv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/podinfo"
)

const (
	v1       = "v1"
	v1alpha1 = "v1alpha1"
)

// responseSize adds up the size of a response while it is built.
type responseSize int

func (s *responseSize) add(m proto.Message) error {
	if *s += responseSize(proto.Size(m)); *s > maxResponse {
		return grpcstatus.Errorf(codes.ResourceExhausted, "the answer is larger than %d bytes", maxResponse)
	}
	return nil
}

type v1Server struct {
	apiv1.UnimplementedPodResourcesListerServer
	*Server
}

// List returns the active pods.
func (s *v1Server) List(context.Context, *apiv1.ListPodResourcesRequest) (*apiv1.ListPodResourcesResponse, error) {
	s.total.WithLabelValues(v1).Inc()
	s.list.WithLabelValues(v1).Inc()
	out := &apiv1.ListPodResourcesResponse{}
	all := responseSize(0)
	for _, p := range sorted(s.cfg.Pods.Active()) {
		one, err := s.pod(p, &all)
		if err != nil {
			s.listErrors.WithLabelValues(v1).Inc()
			return nil, err
		}
		out.PodResources = append(out.PodResources, one)
	}
	return out, nil
}

// Get returns one active pod.
func (s *v1Server) Get(
	_ context.Context, request *apiv1.GetPodResourcesRequest,
) (*apiv1.GetPodResourcesResponse, error) {
	s.total.WithLabelValues(v1).Inc()
	s.get.WithLabelValues(v1).Inc()
	var found *corev1.Pod
	for _, p := range s.cfg.Pods.Active() {
		if p.Namespace == request.GetPodNamespace() && p.Name == request.GetPodName() &&
			(found == nil || p.DeletionTimestamp == nil) {
			found = p
		}
	}
	// without a code of its own, as in Kubernetes
	err := fmt.Errorf("pod %.300s in namespace %.100s not found", request.GetPodName(), request.GetPodNamespace())
	var one *apiv1.PodResources
	if found != nil {
		var all responseSize
		one, err = s.pod(found, &all)
	}
	if err != nil {
		s.getErrors.WithLabelValues(v1).Inc()
		return nil, err
	}
	return &apiv1.GetPodResourcesResponse{PodResources: one}, nil
}

// GetAllocatableResources returns the healthy devices of the node. There are no exclusive CPUs and no exclusive memory.
func (s *v1Server) GetAllocatableResources(
	context.Context, *apiv1.AllocatableResourcesRequest,
) (*apiv1.AllocatableResourcesResponse, error) {
	s.total.WithLabelValues(v1).Inc()
	s.getAllocatable.WithLabelValues(v1).Inc()
	out := &apiv1.AllocatableResourcesResponse{}
	all := responseSize(0)
	for _, d := range s.cfg.Devices.Allocatable() {
		for _, entry := range containerDevices(d) {
			if err := all.add(entry); err != nil {
				s.getAllocatableErrors.WithLabelValues(v1).Inc()
				return nil, err
			}
			out.Devices = append(out.Devices, entry)
		}
	}
	return out, nil
}

// pod returns the containers and sidecars of a pod. Devices of other init containers are reused by later containers.
func (s *Server) pod(p *corev1.Pod, all *responseSize) (*apiv1.PodResources, error) {
	out := &apiv1.PodResources{Name: p.Name, Namespace: p.Namespace}
	for c, k := range podinfo.All(p) {
		if k != podinfo.SideCar && k != podinfo.Main {
			continue
		}
		one := &apiv1.ContainerResources{Name: c.Name}
		for _, d := range s.cfg.Devices.Devices(string(p.UID), c.Name) {
			one.Devices = append(one.Devices, containerDevices(d)...)
		}
		for _, claim := range s.cfg.Claims.Claims(p, c) {
			dynamic := &apiv1.DynamicResource{ClaimName: claim.Name, ClaimNamespace: claim.Namespace}
			for _, d := range claim.Devices {
				r := &apiv1.ClaimResource{
					DriverName: d.Driver,
					PoolName:   d.Pool,
					DeviceName: d.Name,
					ShareId:    d.ShareID,
				}
				for _, name := range d.CDI {
					r.CdiDevices = append(r.CdiDevices, &apiv1.CDIDevice{Name: name})
				}
				dynamic.ClaimResources = append(dynamic.ClaimResources, r)
			}
			one.DynamicResources = append(one.DynamicResources, dynamic)
		}
		if err := all.add(one); err != nil {
			return nil, err
		}
		out.Containers = append(out.Containers, one)
	}
	return out, nil
}

// containerDevices returns a device as Kubernetes does: one entry for each NUMA node of its topology.
func containerDevices(d deviceplugin.Device) []*apiv1.ContainerDevices {
	if len(d.NUMANodes) == 0 {
		return []*apiv1.ContainerDevices{{ResourceName: d.Resource, DeviceIds: []string{d.ID}}}
	}
	var out []*apiv1.ContainerDevices
	for _, n := range d.NUMANodes {
		out = append(out, &apiv1.ContainerDevices{
			ResourceName: d.Resource,
			DeviceIds:    []string{d.ID},
			Topology:     &apiv1.TopologyInfo{Nodes: []*apiv1.NUMANode{{ID: n}}},
		})
	}
	return out
}

// v1alpha1Server serves the API's first version, which Kubernetes still has: all pods, without init containers.
type v1alpha1Server struct {
	apiv1alpha1.UnimplementedPodResourcesListerServer
	*Server
}

// List returns all pods.
func (s *v1alpha1Server) List(
	context.Context, *apiv1alpha1.ListPodResourcesRequest,
) (*apiv1alpha1.ListPodResourcesResponse, error) {
	s.total.WithLabelValues(v1alpha1).Inc()
	out := &apiv1alpha1.ListPodResourcesResponse{}
	all := responseSize(0)
	for _, p := range sorted(s.cfg.Pods.All()) {
		one := &apiv1alpha1.PodResources{Name: p.Name, Namespace: p.Namespace}
		for i := range p.Spec.Containers {
			c := &apiv1alpha1.ContainerResources{Name: p.Spec.Containers[i].Name}
			for _, d := range s.cfg.Devices.Devices(string(p.UID), c.GetName()) {
				c.Devices = append(c.Devices, &apiv1alpha1.ContainerDevices{
					ResourceName: d.Resource,
					DeviceIds:    []string{d.ID},
				})
			}
			if err := all.add(c); err != nil {
				return nil, err
			}
			one.Containers = append(one.Containers, c)
		}
		out.PodResources = append(out.PodResources, one)
	}
	return out, nil
}

func sorted(pods []*corev1.Pod) []*corev1.Pod {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/kind"
	"keelson/apiserver/access"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
	"keelson/apiserver/servicealloc"
	"keelson/apiserver/writes"
)

var (
	ipAddresses  = networkingv1.SchemeGroupVersion.WithResource("ipaddresses")
	serviceCIDRs = networkingv1.SchemeGroupVersion.WithResource("servicecidrs")

	servicesGVR    = corev1.SchemeGroupVersion.WithResource("services")
	eventsResource = eventsv1.SchemeGroupVersion.WithResource("events")
)

// newAllocator creates the allocator of cluster IPs and node ports. It knows the existing Services and IPAddresses by
// serviceAddresses.handlers. record is the record of node ports; nil: no other server allocates any.
func newAllocator(
	config *Config, own *writes.Own, record objects.Storage,
) (*servicealloc.Allocator, error) {
	ports := config.NodePorts
	if ports == (servicealloc.PortRange{}) {
		ports = servicealloc.DefaultPorts
	}
	var shared servicealloc.RangeRegistry
	if record != nil {
		shared = rangeRegistry{record}
	}
	report := func(ctx context.Context, problem servicealloc.Problem) error {
		return own.Create(ctx, eventsResource, serviceEvent(problem))
	}
	return servicealloc.New(config.Address.Ranges(), ports, ipAddressClient{own, config.Data.Reader}, shared, report)
}

// serviceAddresses allocates the addresses and ports of Services.
type serviceAddresses struct{ *servicealloc.Allocator }

// Begin implements handlers.Allocator.
func (a serviceAddresses) Begin(ctx context.Context, obj, old kind.Object, dry bool) (func(bool), error) {
	service, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("addresses of a service: it is a %T", obj)
	}
	before, _ := old.(*corev1.Service)
	return a.Allocator.Begin(ctx, service, before, dry)
}

// AfterDelete implements handlers.Allocator.
func (a serviceAddresses) AfterDelete(ctx context.Context, obj kind.Object) {
	if service, ok := obj.(*corev1.Service); ok {
		a.Allocator.AfterDelete(ctx, service)
	}
}

// handlers pass the allocator what is stored.
func (a serviceAddresses) handlers() []access.EventHandler {
	return []access.EventHandler{
		{Resource: serviceCIDRs, Set: a.SetRange, Remove: a.RemoveRange},
		{Resource: ipAddresses, Set: a.SetAddress, Remove: a.RemoveAddress},
		{Resource: servicesGVR, Set: a.SetService, Remove: a.RemoveService},
	}
}

// portHandlers pass the allocator the record of node ports that servers share; nil: there is none.
func portHandlers(allocator *servicealloc.Allocator, record objects.Storage) []access.EventHandler {
	if record == nil {
		return nil
	}
	return []access.EventHandler{{
		Resource: resources.RangeAllocations.Resource.WithVersion("v1"),
		Storage:  record,
		Set:      allocator.SetRangeAllocation,
		Remove:   allocator.RemoveRangeAllocation,
	}}
}

// serviceEvent is an event about a problem with a Service's addresses or ports.
func serviceEvent(problem servicealloc.Problem) *eventsv1.Event {
	const controller = "service-allocator"
	now := time.Now()
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: problem.Service.Namespace,
			Name:      fmt.Sprintf("%s.%x", problem.Service.Name, now.UnixNano()),
		},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: controller,
		ReportingInstance:   controller,
		Type:                corev1.EventTypeWarning,
		Reason:              problem.Reason,
		Action:              problem.Action,
		Note:                problem.Message,
		Regarding: corev1.ObjectReference{
			APIVersion: "v1",
			Kind:       "Service",
			Namespace:  problem.Service.Namespace,
			Name:       problem.Service.Name,
			UID:        problem.UID,
		},
	}
}

// ipAddressClient creates and deletes the IPAddress objects of Services.
type ipAddressClient struct {
	own    *writes.Own
	reader *access.Reader
}

func (c ipAddressClient) Create(ctx context.Context, ip netip.Addr, service types.NamespacedName) error {
	err := c.own.Create(ctx, ipAddresses, servicealloc.Address(ip, service))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	current, err := c.current(ctx, ip)
	if err != nil {
		return err
	}
	if owner, ours := servicealloc.Of(current); !ours || owner != service {
		return servicealloc.ErrAllocated
	}
	return nil
}

func (c ipAddressClient) Delete(ctx context.Context, ip netip.Addr, service types.NamespacedName) error {
	current, err := c.current(ctx, ip)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if owner, ours := servicealloc.Of(current); !ours || owner != service {
		return nil
	}
	if err := c.own.Delete(ctx, ipAddresses, current); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// current reads the IPAddress from the store.
func (c ipAddressClient) current(ctx context.Context, ip netip.Addr) (*networkingv1.IPAddress, error) {
	obj, err := c.reader.GetLatest(ctx, ipAddresses, "", ip.String())
	if err != nil {
		return nil, err
	}
	a, ok := obj.(*networkingv1.IPAddress)
	if !ok {
		return nil, fmt.Errorf("address %s is a %T", ip, obj)
	}
	return a, nil
}

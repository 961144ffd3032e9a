// SPDX-License-Identifier: Apache-2.0

// Package backend resolves a Service to the address of a ready endpoint, or else to the cluster IP. The API server uses
// it to call webhooks and aggregated API servers, because it must not depend on its node's service proxy. It only reads
// objects and never opens a connection.
package backend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reader reads the server's objects. They are shared and never modified. apiserver.Reader implements it.
type Reader interface {
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (runtime.Object, error)
	Select(
		ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector,
	) ([]runtime.Object, error)
}

var (
	servicesGVR  = corev1.SchemeGroupVersion.WithResource("services")
	slicesGVR    = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	endpointsGVR = corev1.SchemeGroupVersion.WithResource("endpoints")
)

// Resolve returns host:port of an endpoint for the Service's port. Errors are worded for a condition's message.
func Resolve(ctx context.Context, reader Reader, namespace, name string, port int32) (string, error) {
	obj, err := reader.Get(ctx, servicesGVR, namespace, name)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("service %q in %q is not present: %w", name, namespace, err)
	}
	if err != nil {
		return "", err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return "", fmt.Errorf("service %s/%s is a %T", namespace, name, obj)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	}
	p := portOf(svc, port)
	if p == nil {
		return "", fmt.Errorf("no service port %d found for service %q", port, name)
	}
	addresses, err := readyAddresses(ctx, reader, svc, p.Name)
	if err != nil {
		return "", err
	}
	if len(addresses) > 0 {
		return addresses[rand.N(len(addresses))], nil // load balancing, not security
	}
	if ip := svc.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		return net.JoinHostPort(ip, strconv.Itoa(int(port))), nil
	}
	return "", fmt.Errorf("no endpoints available for service %q", name)
}

// Ready reports whether the Service exists with that port and a ready endpoint; the error says what is missing. unready
// is true if only a ready endpoint is missing.
func Ready(ctx context.Context, reader Reader, namespace, name string, port int32) (unready bool, err error) {
	obj, err := reader.Get(ctx, servicesGVR, namespace, name)
	if err != nil {
		return false, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return false, fmt.Errorf("service %s/%s is a %T", namespace, name, obj)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return false, nil
	}
	p := portOf(svc, port)
	if p == nil {
		return false, fmt.Errorf("service/%s in %q is not listening on port %d", name, namespace, port)
	}
	addresses, err := readyAddresses(ctx, reader, svc, p.Name)
	if err != nil {
		return false, err
	}
	if len(addresses) == 0 {
		return true, fmt.Errorf("endpoints for service/%s in %q have no addresses with port name %q", name, namespace,
			p.Name)
	}
	return false, nil
}

func portOf(svc *corev1.Service, port int32) *corev1.ServicePort {
	for i := range svc.Spec.Ports {
		if svc.Spec.Ports[i].Port == port {
			return &svc.Spec.Ports[i]
		}
	}
	return nil
}

// readyAddresses lists the ready addresses for a Service's port, from its EndpointSlices or, if there are none, its
// Endpoints.
func readyAddresses(ctx context.Context, reader Reader, svc *corev1.Service, portName string) ([]string, error) {
	list, err := reader.Select(ctx, slicesGVR, svc.Namespace,
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: svc.Name}), nil)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, obj := range list {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
			out = append(out, sliceAddresses(slice, portName)...)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	obj, err := reader.Get(ctx, endpointsGVR, svc.Namespace, svc.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if e, ok := obj.(*corev1.Endpoints); ok { // deprecated, but still written by clients
		out = endpointsAddresses(e, portName)
	}
	return out, nil
}

func sliceAddresses(s *discoveryv1.EndpointSlice, portName string) []string {
	var out []string
	for _, p := range s.Ports {
		if p.Port == nil || p.Name != nil && *p.Name != portName || p.Name == nil && portName != "" {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
			}
		}
	}
	return out
}

func endpointsAddresses(e *corev1.Endpoints, portName string) []string { // deprecated, but still written by clients
	var out []string
	for i := range e.Subsets {
		for _, p := range e.Subsets[i].Ports {
			if p.Name != portName {
				continue
			}
			for _, a := range e.Subsets[i].Addresses {
				out = append(out, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	return out
}

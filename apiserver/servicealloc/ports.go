// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/service"
)

// PortRange is an inclusive range of ports.
type PortRange struct{ First, Last int32 }

// DefaultPorts is the default node port range.
var DefaultPorts = PortRange{First: 30000, Last: 32767}

// String formats the range for messages.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Contains reports whether the range has the port.
func (r PortRange) Contains(port int32) bool { return port >= r.First && port <= r.Last }

// static is the number of ports at the low end that automatic allocation uses last (KEP-3668).
func (r PortRange) static() int32 {
	const least, most, step = 16, 128, 32
	if size := r.Last - r.First + 1; size > least {
		return min(max(least, size/step), most)
	}
	return 0
}

var errPortAllocated = errors.New("provided port is already allocated")

// allocateNodePorts allocates the ports that s requests, and assigns missing ones.
func (t *allocation) allocateNodePorts(ctx context.Context, s, old *corev1.Service) error {
	if s.Spec.Type != corev1.ServiceTypeNodePort && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if t.a.registry != nil && !t.dry {
		return t.allocatePortsInRegistry(ctx, s, old)
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.portInUse = func(port int32) bool { return len(t.a.nodePorts[port]) > 0 || t.a.observed.bits.has(port) }
	if err := t.choosePorts(s, old); err != nil {
		return err
	}
	t.addPortsLocked()
	return nil
}

// addPortsLocked records the chosen ports, except for a dry run.
func (t *allocation) addPortsLocked() {
	if t.dry {
		return
	}
	for _, port := range t.ports {
		t.a.addPortLocked(port, holder{uid: t.uid, service: t.service})
	}
}

// choosePorts chooses ports; t.has reports which ones are in use.
func (t *allocation) choosePorts(svc, old *corev1.Service) error {
	pick := t.choosePortsForCreate
	if old != nil {
		pick = func(s *corev1.Service) error { return t.choosePortsForUpdate(s, old) }
	}
	if err := pick(svc); err != nil {
		return err
	}
	if !service.HasHealthCheck(svc) || old != nil && service.HasHealthCheck(old) {
		return nil
	}
	// For load balancers that check each node for local endpoints.
	if port := svc.Spec.HealthCheckNodePort; port != 0 {
		if err := t.allocatePort(port); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %d: %w",
				port, err))
		}
		return nil
	}
	free, err := t.allocateNextPort()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %d: %w", free, err))
	}
	svc.Spec.HealthCheckNodePort = free
	return nil
}

// choosePortsForCreate handles a new Service. A port with two protocols has one node port.
func (t *allocation) choosePortsForCreate(svc *corev1.Service) error {
	nodePorts := map[int32]int32{} // node ports by port
	for i := range svc.Spec.Ports {
		servicePort := &svc.Spec.Ports[i]
		if servicePort.NodePort == 0 && !service.GetsNodePorts(svc) {
			continue
		}
		shared := nodePorts[servicePort.Port]
		switch {
		case shared == 0:
			named := slices.IndexFunc(svc.Spec.Ports, func(o corev1.ServicePort) bool {
				return o.Port == servicePort.Port && o.NodePort != 0
			})
			if named < 0 {
				free, err := t.allocateNextPort()
				if err != nil {
					return portAllocationError(err)
				}
				servicePort.NodePort = free
			} else {
				servicePort.NodePort = svc.Spec.Ports[named].NodePort
				if err := t.allocatePort(servicePort.NodePort); err != nil {
					return invalidPort(svc, i, err)
				}
			}
			nodePorts[servicePort.Port] = servicePort.NodePort
		case servicePort.NodePort == 0:
			servicePort.NodePort = shared
		case servicePort.NodePort != shared:
			if err := t.allocatePort(servicePort.NodePort); err != nil {
				return invalidPort(svc, i, err)
			}
		}
	}
	return nil
}

// choosePortsForUpdate handles an update.
func (t *allocation) choosePortsForUpdate(svc, old *corev1.Service) error {
	type key struct {
		Protocol corev1.Protocol
		NodePort int32
	}
	current := map[int32]bool{}
	seen := map[key]bool{}
	for _, p := range old.Spec.Ports {
		current[p.NodePort] = true
	}
	for i := range svc.Spec.Ports {
		servicePort := &svc.Spec.Ports[i]
		switch {
		case servicePort.NodePort == 0 && !service.GetsNodePorts(svc):
			continue
		case servicePort.NodePort == 0:
			free, err := t.allocateNextPort()
			if err != nil {
				return portAllocationError(err)
			}
			servicePort.NodePort = free
		case !current[servicePort.NodePort]:
			if err := t.allocatePort(servicePort.NodePort); err != nil {
				return invalidPort(svc, i, err)
			}
			current[servicePort.NodePort] = true
		}
		k := key{servicePort.Protocol, servicePort.NodePort}
		if seen[k] {
			return fmt.Errorf("duplicate nodePort: %v", k)
		}
		seen[k] = true
	}
	return nil
}

func portAllocationError(err error) error {
	return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
}

func invalidPort(s *corev1.Service, i int, err error) error {
	return refuse(s, field.ErrorList{field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"),
		s.Spec.Ports[i].NodePort, err.Error())})
}

func (t *allocation) allocatePort(port int32) error {
	switch {
	case !t.dry && !t.a.ports.Contains(port): // Kubernetes' dry run accepts it
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", t.a.ports)
	case t.portInUse(port), slices.Contains(t.ports, port):
		return errPortAllocated
	}
	t.ports = append(t.ports, port)
	return nil
}

// allocateNextPort allocates a free port. A dry run gets a port that no Service can have.
func (t *allocation) allocateNextPort() (int32, error) {
	if t.dry {
		next := int32(32768)
		if len(t.ports) > 0 {
			next = slices.Max(t.ports)
		}
		t.ports = append(t.ports, next+1)
		return next + 1, nil
	}
	r := t.a.ports
	start := r.First + r.static()
	for _, part := range [][2]int32{{start, r.Last + 1}, {r.First, start}} {
		n := part[1] - part[0]
		if n <= 0 {
			continue
		}
		from := rand.Int32N(n) // not for security
		for i := range n {
			port := part[0] + (from+i)%n
			if !t.portInUse(port) && !slices.Contains(t.ports, port) {
				t.ports = append(t.ports, port)
				return port, nil
			}
		}
	}
	return 0, errFull
}

// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/service"
)

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last int32 }

// DefaultPorts are the node ports where nobody says otherwise.
var DefaultPorts = PortRange{First: 30000, Last: 32767}

// String writes the range as messages do.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// static is how many numbers at the low end are picked by hand first, and by the server last (KEP-3668).
func (r PortRange) static() int32 {
	const least, most, step = 16, 128, 32
	if size := r.Last - r.First + 1; size > least {
		return min(max(least, size/step), most)
	}
	return 0
}

var errPortTaken = errors.New("provided port is already allocated")

// nodePorts takes those that s names, and gives it those that it lacks.
func (t *taking) nodePorts(s, old *corev1.Service) error {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		take := t.newPortsLocked
		if old != nil {
			take = func(s *corev1.Service) error { return t.changedPortsLocked(s, old) }
		}
		if err := take(s); err != nil {
			return err
		}
	}
	if !service.HasHealthCheck(s) || old != nil && service.HasHealthCheck(old) {
		return nil
	}
	// For load balancers that ask each node whether it has an endpoint.
	if port := s.Spec.HealthCheckNodePort; port != 0 {
		if err := t.takePortLocked(port); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %d: %w", port, err))
		}
		return nil
	}
	free, err := t.freePortLocked()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %d: %w", free, err))
	}
	s.Spec.HealthCheckNodePort = free
	return nil
}

// newPortsLocked is for a new service. One port of two protocols has one node port.
func (t *taking) newPortsLocked(s *corev1.Service) error {
	given := map[int32]int32{} // node ports by port
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort == 0 && !service.GetsNodePorts(s) {
			continue
		}
		shared := given[p.Port]
		switch {
		case shared == 0:
			named := slices.IndexFunc(s.Spec.Ports, func(o corev1.ServicePort) bool { return o.Port == p.Port && o.NodePort != 0 })
			if named < 0 {
				free, err := t.freePortLocked()
				if err != nil {
					return noPort(err)
				}
				p.NodePort = free
			} else {
				p.NodePort = s.Spec.Ports[named].NodePort
				if err := t.takePortLocked(p.NodePort); err != nil {
					return invalidPort(s, i, err)
				}
			}
			given[p.Port] = p.NodePort
		case p.NodePort == 0:
			p.NodePort = shared
		case p.NodePort != shared:
			if err := t.takePortLocked(p.NodePort); err != nil {
				return invalidPort(s, i, err)
			}
		}
	}
	return nil
}

// changedPortsLocked is for an update.
func (t *taking) changedPortsLocked(s, old *corev1.Service) error {
	type key struct {
		Protocol corev1.Protocol
		NodePort int32
	}
	mine, seen := map[int32]bool{}, map[key]bool{}
	for _, p := range old.Spec.Ports {
		mine[p.NodePort] = true
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		switch {
		case p.NodePort == 0 && !service.GetsNodePorts(s):
			continue
		case p.NodePort == 0:
			free, err := t.freePortLocked()
			if err != nil {
				return noPort(err)
			}
			p.NodePort = free
		case !mine[p.NodePort]:
			if err := t.takePortLocked(p.NodePort); err != nil {
				return invalidPort(s, i, err)
			}
			mine[p.NodePort] = true
		}
		k := key{p.Protocol, p.NodePort}
		if seen[k] {
			return fmt.Errorf("duplicate nodePort: %v", k)
		}
		seen[k] = true
	}
	return nil
}

func noPort(err error) error {
	return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
}

func invalidPort(s *corev1.Service, i int, err error) error {
	return invalid(s, field.ErrorList{field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), s.Spec.Ports[i].NodePort, err.Error())})
}

func (t *taking) takePortLocked(port int32) error {
	if _, taken := t.a.taken[port]; taken || slices.Contains(t.ports, port) {
		return errPortTaken
	}
	t.ports = append(t.ports, port)
	if t.dry {
		return nil
	}
	if port < t.a.ports.First || port > t.a.ports.Last {
		t.ports = t.ports[:len(t.ports)-1]
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", t.a.ports)
	}
	t.a.taken[port] = t.uid
	return nil
}

// freePortLocked takes a port that nobody has. A dry run is told one that no service can have.
func (t *taking) freePortLocked() (int32, error) {
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
		from := rand.Int32N(n) //nolint:gosec // guards nothing
		for i := range n {
			port := part[0] + (from+i)%n
			if _, taken := t.a.taken[port]; !taken {
				return port, t.takePortLocked(port)
			}
		}
	}
	return 0, errFull
}

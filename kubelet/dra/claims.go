// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Claim is a prepared claim as the PodResources API shows it: the devices that one container has of it.
type Claim struct {
	Namespace, Name string
	Devices         []Device
}

// Device is a device of a claim.
type Device struct {
	Driver, Pool, Name string
	ShareID            *string // the share of a device that several claims use
	CDI                []string
}

// Claims returns the prepared claims of a container, in the order of its resources.claims.
func (m *Manager) Claims(p *corev1.Pod, c *corev1.Container) []Claim {
	wanted, err := requestsOf(p, c)
	if m == nil || err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Claim
	for i, w := range wanted {
		of := m.claims[p.Namespace+"/"+w.claim]
		if of == nil || !of.Prepared || !slices.Contains(of.Pods, string(p.UID)) ||
			slices.ContainsFunc(wanted[:i], func(earlier request) bool { return earlier.claim == w.claim }) {
			continue
		}
		one := Claim{Namespace: of.Namespace, Name: of.Name}
		for j := range of.Devices {
			d := &of.Devices[j]
			if slices.ContainsFunc(wanted, func(r request) bool { return r.claim == w.claim && d.serves(r.name) }) {
				one.Devices = append(one.Devices, Device{d.Driver, d.Pool, d.Device, d.ShareID, d.CDI})
			}
		}
		out = append(out, one)
	}
	return out
}

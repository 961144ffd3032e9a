// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/managedfields"
)

// Types reads objects of the manager's kind through their merge schema, for callers that merge without tracking owners.
func (m *Manager) Types() (managedfields.TypeConverter, error) {
	if m.custom != nil {
		c, err := m.custom()
		if err != nil {
			return nil, fmt.Errorf("merge schema of %s: %w", m.gvk.Kind, err)
		}
		return customTypes(c.Types), nil
	}
	parse, err := typeOf(m.gvk)
	if err != nil {
		return nil, err
	}
	return typeConverter{parse}, nil
}

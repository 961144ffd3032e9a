// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"

	resourcekind "keelson/api/resource"
)

// offered are the slices as they were at one count of Known.offers.
type offered struct {
	at     int64
	slices []*resourcev1.ResourceSlice // nil: none have been made
}

// allSlices are those of the cache, with the taints that DeviceTaintRules add to their devices.
func (k *Known) allSlices() ([]*resourcev1.ResourceSlice, error) {
	var rules []*resourcev1.DeviceTaintRule
	if k.rules != nil {
		var err error
		if rules, err = k.rules.List(labels.Everything()); err != nil {
			return nil, err
		}
	}
	if len(rules) == 0 {
		return k.slices.List(labels.Everything())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tainted.slices != nil && k.tainted.at == k.offers {
		return k.tainted.slices, nil
	}
	all, err := k.slices.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	out := make([]*resourcev1.ResourceSlice, len(all))
	for i, s := range all {
		out[i] = taint(s, rules)
	}
	k.tainted = offered{k.offers, out}
	return out, nil
}

// taint is a slice with the taints of the rules that select its devices: s itself where none does.
func taint(s *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	out := s
	for _, r := range rules {
		for i := range s.Spec.Devices {
			if !resourcekind.RuleSelects(r, s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name) {
				continue
			}
			if out == s {
				out = s.DeepCopy()
			}
			out.Spec.Devices[i].Taints = append(out.Spec.Devices[i].Taints, r.Spec.Taint)
		}
	}
	return out
}

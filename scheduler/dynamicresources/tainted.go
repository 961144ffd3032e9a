// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"

	resourcekind "keelson/api/resource"
)

// versionedSlices are the slices at one Tracker.devicesVersion.
type versionedSlices struct {
	version int64
	slices  []*resourcev1.ResourceSlice // nil: not computed
}

// allSlices returns the slices of the cache, with the taints of DeviceTaintRules.
func (k *Tracker) allSlices() ([]*resourcev1.ResourceSlice, error) {
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
	if k.taintedSlices.slices != nil && k.taintedSlices.version == k.devicesVersion {
		return k.taintedSlices.slices, nil
	}
	all, err := k.slices.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	out := make([]*resourcev1.ResourceSlice, len(all))
	for i, s := range all {
		out[i] = withRuleTaints(s, rules)
	}
	k.taintedSlices = versionedSlices{k.devicesVersion, out}
	return out, nil
}

// withRuleTaints returns a slice with the taints of the rules that select its devices; s itself if none does.
func withRuleTaints(s *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
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

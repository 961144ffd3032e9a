// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"testing"

	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/kind"
)

// TestBootstrap: the objects every cluster starts with are valid and complete, and every schema's level exists.
func TestBootstrap(t *testing.T) {
	levels := map[string]bool{}
	kinds := map[bool]*kind.Kind{true: FlowSchema(), false: PriorityLevelConfiguration()}
	for _, obj := range Bootstrap() {
		flowSchema, isSchema := obj.(*flowv1.FlowSchema)
		k := kinds[isSchema]
		o := obj.(kind.Object)
		before := obj.DeepCopyObject()
		k.Default(o)
		if !equality.Semantic.DeepEqual(before, runtime.Object(o)) {
			t.Errorf("%s: defaulting changes it", o.GetName())
		}
		if errs := k.Validate(o); len(errs) > 0 {
			t.Errorf("%s: %v", o.GetName(), errs)
		}
		if !isSchema {
			levels[o.GetName()] = true
		} else if !levels[flowSchema.Spec.PriorityLevelConfiguration.Name] {
			t.Errorf("schema %s names level %s, which does not come before it", flowSchema.Name,
				flowSchema.Spec.PriorityLevelConfiguration.Name)
		}
	}
	if len(Bootstrap()) != 8+11 {
		t.Errorf("got %d objects, want 8 levels and 11 schemas", len(Bootstrap()))
	}
}

func TestExemptSharesMayChange(t *testing.T) {
	k := PriorityLevelConfiguration()
	p := MandatoryPriorityLevels()[0]
	p.Spec.Exempt.LendablePercent = new(int32(50))
	if errs := k.Validate(p); len(errs) > 0 {
		t.Errorf("lendable percent of exempt: %v", errs)
	}
}

func TestEntropy(t *testing.T) {
	for _, c := range []struct {
		deck, hand int32
		bits       int
	}{{64, 8, 48}, {128, 6, 42}, {16, 4, 16}, {1, 1, 0}} {
		if got := entropy(c.deck, c.hand); got != c.bits {
			t.Errorf("%d of %d: got %d bits, want %d", c.hand, c.deck, got, c.bits)
		}
	}
	if entropy(10_000_000, 9) <= maxEntropy {
		t.Error("nine of ten million needs too many bits")
	}
}

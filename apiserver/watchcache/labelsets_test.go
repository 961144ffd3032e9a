// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// TestLabelSetsAreGivenBack: a set is shared while objects have it, and forgotten with the last of them.
func TestLabelSetsAreGivenBack(t *testing.T) {
	sets := labelSets{}
	first := sets.take(labels.Set{"app": "web", "tier": "front"}, nil)
	second := sets.take(labels.Set{"tier": "front", "app": "web"}, nil)
	if first != second || first.uses != 2 || len(sets) != 1 {
		t.Fatalf("equal labels have sets %v and %v, of %d; want one with two uses", first, second, len(sets))
	}
	if again := sets.take(labels.Set{"app": "web", "tier": "front"}, first); again != first || first.uses != 3 {
		t.Errorf("an update without a change of labels has set %v with %d uses, want the same with 3", again, first.uses)
	}
	if none := sets.take(labels.Set{}, first); none != nil {
		t.Errorf("no labels have set %v, want none", none)
	}
	for range 3 {
		sets.release(first)
	}
	sets.release(nil)
	if len(sets) != 0 {
		t.Errorf("%d sets are kept that no object has", len(sets))
	}
}

// TestLabelSetsOfOneHash: two sets with one hash are two, though only the first is shared.
func TestLabelSetsOfOneHash(t *testing.T) {
	web := labels.Set{"app": "web"}
	other := &labelSet{labels: labels.Set{"app": "other"}, hash: hashLabels(web), uses: 1}
	sets := labelSets{other.hash: other}
	taken := sets.take(web, nil)
	if taken == other || taken.labels["app"] != "web" {
		t.Fatalf("labels %v have set %v", web, taken)
	}
	sets.release(taken)
	if sets[other.hash] != other {
		t.Error("the other set with this hash is forgotten, though an object has it")
	}
}

// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestNothingWrittenIsNotTold: a batch that writes nothing is not logged, so the log of an idle cluster does not grow.
func TestNothingWrittenIsNotTold(t *testing.T) {
	again := &changeBatch{node: &corev1.Node{}}
	changed := &changeBatch{services: map[types.NamespacedName]seen{{Namespace: "a", Name: "b"}: {}}}
	for _, c := range []struct {
		batch        *changeBatch
		full, broken bool
		want         bool
	}{{again, false, false, false}, {again, true, false, true}, {again, false, true, true}, {
		changed, false, false, true,
	}} {
		if got := c.batch.wrote(c.full, c.broken); got != c.want {
			t.Errorf("%+v: got %v, want %v", c, got, c.want)
		}
	}
}

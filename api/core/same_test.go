// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
)

// same compares errors with their texts.
func same(t *testing.T, name string, errs field.ErrorList, want []string) {
	t.Helper()
	got := []string{}
	for _, e := range errs {
		got = append(got, e.Error())
	}
	if len(want) == 0 {
		want = []string{}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// create does what the server does before it validates.
func create(k *kind.Kind, obj kind.Object) {
	k.Default(obj)
	k.PrepareCreate(obj)
}

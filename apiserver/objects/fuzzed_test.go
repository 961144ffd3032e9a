// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/base64"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// FuzzContinue: a token never leads out of what its list may read.
func FuzzContinue(f *testing.F) {
	f.Add(encodeContinue("/registry/pods/a/b\x00", "/registry/pods/", 5))
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":1,"start":"../secrets/x"}`)))
	f.Fuzz(func(t *testing.T, token string) {
		const prefix = "/registry/pods/ns/"
		from, _, err := decodeContinue(token, prefix)
		if err == nil && (!strings.HasPrefix(from, prefix) || strings.Contains(from, "/../")) {
			t.Errorf("token %q leads to %q", token, from)
		}
	})
}

// FuzzSelectors: what parses, matches without a panic and reads back as the same.
func FuzzSelectors(f *testing.F) {
	for _, s := range []string{"a=b,c!=d", "a in (b,c),!d", "x,y notin (z)", "metadata.name=a,spec.nodeName!=b", `a=b\,c`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if sel, err := labels.Parse(s); err == nil {
			sel.Matches(labels.Set{"a": "b"})
			if again, err := labels.Parse(sel.String()); err != nil || again.String() != sel.String() {
				t.Errorf("label selector %q reads back as %q, %v", s, sel, err)
			}
		}
		if sel, err := fields.ParseSelector(s); err == nil {
			sel.Matches(fields.Set{"a": "b"})
		}
	})
}

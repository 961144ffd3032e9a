// SPDX-License-Identifier: Apache-2.0

package check

import (
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
)

func TestPaths(t *testing.T) {
	errs := At(field.NewPath("template"))
	errs.In("spec")
	errs.In("containers")
	errs.Index(2)
	errs.Required("name", "")
	errs.In("resources")
	errs.Key("cpu")
	errs.Invalid("", "x", "bad")
	errs.Out()
	errs.Forbidden("a.b", "no")
	errs.Out()
	errs.Out()
	errs.Out()
	errs.Duplicate("volumes", "v")
	errs.Out()
	want := []string{
		"template.spec.containers[2].name: Required value",
		`template.spec.containers[2].resources[cpu]: Invalid value: "x": bad`,
		"template.spec.containers[2].resources.a.b: Forbidden: no",
		`template.spec.volumes: Duplicate value: "v"`,
	}
	for i, err := range errs.Errors() {
		if err.Error() != want[i] {
			t.Errorf("error %d: got %q, want %q", i, err, want[i])
		}
	}
	if errs.Len() != len(want) {
		t.Errorf("got %d errors, want %d", errs.Len(), len(want))
	}
}

func TestNothingFoundCostsNothing(t *testing.T) {
	errs := At(nil)
	labels := map[string]string{"app.kubernetes.io/name": "web", "tier": ""}
	got := testing.AllocsPerRun(100, func() {
		errs.In("metadata")
		errs.Index(3)
		errs.Label("name", "web-0")
		errs.Labels("labels", labels)
		errs.IP("ip", "10.0.0.1")
		errs.Out()
		errs.Out()
	})
	if got != 0 || errs.Len() != 0 {
		t.Errorf("%v allocations and %d errors for a valid object, want none", got, errs.Len())
	}
}

func TestSet(t *testing.T) {
	var s Set
	for i := range 30 {
		if v := strconv.Itoa(i); !s.Add(v) || s.Add(v) || !s.Has(v) {
			t.Fatalf("set of %d elements: %q is not new once and known after", i, v)
		}
	}
	if s.Has("30") {
		t.Error("set has what was never added")
	}
}

// FuzzShortCuts holds the ok functions to accept nothing that apimachinery refuses.
func FuzzShortCuts(f *testing.F) {
	for _, s := range []string{
		"", "a", "a-b", "a..b", "-a", "a.b/c_D", "A=b", "a--b", "1", "..x", "x/", "é", "web-0.svc", "10.0.0.1", "::1",
		"1.2.3.4/8",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, c := range map[string]struct {
			ok   bool
			msgs []string
		}{
			"label":     {okLabel(s), validation.IsDNS1123Label(s)},
			"subdomain": {okSubdomain(s), validation.IsDNS1123Subdomain(s)},
			"value":     {okName(s), validation.IsValidLabelValue(s)},
			"qualified": {okQualified(s), validation.IsQualifiedName(s)},
			"key":       {okKey(s), validation.IsConfigMapKey(s)},
			"env":       {okEnv(s), validation.IsRelaxedEnvVarName(s)},
			"port":      {okPortName(s), validation.IsValidPortName(s)},
		} {
			if c.ok && len(c.msgs) > 0 {
				t.Errorf("%s: %q passes the short cut but %v", name, s, c.msgs)
			}
		}
		sel := &metav1.LabelSelector{
			MatchLabels: map[string]string{s: s},
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: s, Operator: metav1.LabelSelectorOperator(s), Values: []string{s}},
			},
		}
		if errs := metavalidation.ValidateLabelSelector(sel, metavalidation.LabelSelectorValidationOptions{},
			nil); okSelector(sel) && len(errs) > 0 {
			t.Errorf("selector of %q passes the short cut but %v", s, errs)
		}
		l := At(nil)
		if l.IP("ip", s); l.Len() == 0 && len(validation.IsValidIPForLegacyField(nil, s, true, nil)) > 0 {
			t.Errorf("%q passes as an IP", s)
		}
		l = At(nil)
		if l.CIDR("cidr", s); l.Len() == 0 && len(validation.IsValidCIDRForLegacyField(nil, s, true, nil)) > 0 {
			t.Errorf("%q passes as a CIDR", s)
		}
	})
}

// TestFullList: a list keeps as many errors as an answer names; the others are counted without being made.
func TestFullList(t *testing.T) {
	const n = 10_000
	items := make([]struct{}, n)
	fill := func(l *List) {
		Each(l, "items", items, func(int, *struct{}) {
			l.Required("name", "")
			l.Label("label", "-")
			l.Add(field.Required(nil, "made elsewhere"))
		})
	}
	errs := At(nil)
	fill(errs)
	if got := errs.Len(); got != 3*n {
		t.Errorf("Len is %d, want %d", got, 3*n)
	}
	if got := errs.Errors(); len(got) != invalid.Max+1 || invalid.Count(got) != 3*n {
		t.Errorf("%d errors are kept and %d counted, want %d and %d", len(got), invalid.Count(got), invalid.Max+1, 3*n)
	}
	other := At(nil)
	other.Add(errs.Errors()...)
	if other.Len() != 3*n {
		t.Errorf("Len of a list that took another is %d, want %d", other.Len(), 3*n)
	}
	full := testing.AllocsPerRun(1, func() {
		for range n {
			errs.Required("name", "")
		}
	})
	if full > 10 {
		t.Errorf("a full list allocates %v times for %d errors", full, n)
	}
}

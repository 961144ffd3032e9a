// SPDX-License-Identifier: Apache-2.0

package quantity

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// dear are texts that the parser takes, and that must reach neither it nor a comparison.
var dear = []string{
	"1e8880888", "0e88808880", "e8880888", "-1E+8880888", "+.5e-8880888", "1e4294967297", "1e2147483647",
	"11111111111111111111e8880888", "00000000000000000000000000000.1e0000000000000000000000000000000001",
	strings.Repeat("9", 100), "1." + strings.Repeat("0", 100), strings.Repeat("1", 62) + "e01",
}

// cheap are texts in use.
var cheap = []string{"0", "1", "-5", "1.5", "100m", "1Ei", "1E", "16Gi", "1e3", "1E-9", "12e0006", "9223372036854775807"}

func TestParse(t *testing.T) {
	for _, text := range dear {
		if q, err := Parse(text); !errors.Is(err, resource.ErrFormatWrong) {
			t.Errorf("Parse(%q) = %v, %v", text, q, err)
		}
	}
	for _, text := range cheap {
		want := resource.MustParse(text)
		if got, err := Parse(text); err != nil || got.Cmp(want) != 0 {
			t.Errorf("Parse(%q) = %v, %v", text, got, err)
		}
	}
	if _, err := Parse("1e5x"); err == nil {
		t.Error("Parse takes 1e5x")
	}
}

// pod returns a document with text, a JSON value, as the request of a container, and as a label.
func pod(text, label string) string {
	return `{"metadata":{"labels":{"a":` + label + `}},"spec":{"containers":[{"name":"a","resources":{"requests":{"cpu":` +
		text + `}}}]}}`
}

func TestCheckJSON(t *testing.T) {
	typ := reflect.TypeFor[*corev1.Pod]()
	for _, text := range dear {
		shown := []string{`"` + text + `"`, `" ` + text + `\u2003"`, `"\u00` + "3" + text[:1] + text + `"`}
		if text[0] == '1' {
			shown = append(shown, text)
		}
		if at := strings.IndexAny(text, "eE"); at >= 0 {
			shown = append(shown, `"`+text[:at]+`\u0065`+text[at+1:]+`"`)
		}
		for i, value := range shown {
			if i == 2 && (text[0] < '0' || text[0] > '9') {
				continue // no digit to escape
			}
			doc := pod(value, `"x"`)
			if err := CheckJSON([]byte(doc), typ); err == nil {
				t.Errorf("CheckJSON takes %s", doc)
			}
			twice := `{"spec":{"containers":[{"resources":{"limits":{"a":` + value + `,"a":"1"}}}]},"spec":{}}`
			if err := CheckJSON([]byte(twice), typ); err == nil {
				t.Errorf("CheckJSON takes %s", twice)
			}
		}
		upper := strings.NewReplacer("spec", "Spec", "containers", "CONTAINERS", "requests", "requestS").
			Replace(pod(`"`+text+`"`, `"x"`))
		if err := CheckJSON([]byte(upper), typ); err == nil {
			t.Errorf("CheckJSON takes %s, which encoding/json decodes", upper)
		}
		if err := CheckJSON([]byte(pod(`"1"`, `"`+text+`"`)), typ); err != nil {
			t.Errorf("%s is refused as a label", text)
		}
	}
	for _, text := range cheap {
		if err := CheckJSON([]byte(pod(`"`+text+`"`, `"7e123456"`)), typ); err != nil {
			t.Errorf("%s is refused", text)
		}
	}
}

func TestCheckValue(t *testing.T) {
	for _, text := range dear {
		value := map[string]any{
			"status": map[string]any{"capacity": map[string]any{"cpu": text}},
			"labels": map[string]any{"a": text},
		}
		if err := CheckValue(value, reflect.TypeFor[*corev1.Node]()); err == nil {
			t.Errorf("CheckValue takes %s", text)
		}
		delete(value, "status")
		if err := CheckValue(value, reflect.TypeFor[*corev1.Node]()); err != nil {
			t.Errorf("%s is refused as a label", text)
		}
	}
}

// TestScan: whatever stands around, a dear text is found at each offset; digests and identifiers are not looked into.
func TestScan(t *testing.T) {
	for _, text := range dear {
		for offset := range 8 {
			doc := []byte(strings.Repeat(" ", offset) + `"` + text + `"`)
			if !JSONMayExceed(doc) || !MayExceed([]byte(strings.Repeat("k", offset)+text+"x")) {
				t.Errorf("%s is not found at %d", text, offset)
			}
		}
	}
	for _, text := range []string{
		`"sha256:5d1e4821a0e77777b"`, `"a1e4567890-1e45-9999-aaaa-123456789012"`, `"node-1234"`, `"2026-11-28T11:25:50Z"`,
		`"\u003c1.5\u003e \u0026"`, `1700000000000000000`,
	} {
		if JSONMayExceed([]byte(text)) {
			t.Errorf("%s is suspect", text)
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, text := range append(dear, cheap...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if Check(text) != nil && len(text) <= maxLength && !MayExceed([]byte(text)) &&
			!strings.ContainsAny(text, "eE") {
			t.Errorf("%q is refused", text)
		}
		q, err := Parse(text)
		if err != nil {
			return
		}
		one := resource.MustParse("1")
		sum := q.DeepCopy()
		sum.Add(one)
		if sum.Cmp(q) <= 0 {
			t.Errorf("%q plus 1 is %s", text, &sum)
		}
	})
}

// BenchmarkScan is of a kilobyte of a pod: 0 allocations.
func BenchmarkScan(b *testing.B) {
	doc := []byte(strings.Repeat(pod(`"100m"`, `"sha256:5d1e4821a0e77777b"`), 100)[:10*1024])
	for b.Loop() {
		if JSONMayExceed(doc) {
			b.Fatal("suspect")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10, "ns/KB")
}

// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestReadIndexes(t *testing.T) {
	for _, c := range []struct {
		text string
		end  int32
		want string
	}{
		{"", 5, ""},
		{"1,3-5,7", 10, "1,3-5,7"},
		{"1,3-5,7", 5, "1,3,4"}, // the job has shrunk
		{"0,1,2", 3, "0-2"},
		{"x,2,9-,-4,1,4", 10, "2,4"},
		{"5-3,99999999999", 10, ""},
	} {
		if got := ReadIndexes(c.text, c.end).String(); got != c.want {
			t.Errorf("%q below %d: got %q, want %q", c.text, c.end, got, c.want)
		}
	}
}

// TestIndexesAsSets compares with a plain set.
func TestIndexesAsSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const end = 40
		set := func(name string) []int32 {
			s := rapid.SliceOfDistinct(rapid.Int32Range(0, end-1), func(n int32) int32 { return n }).Draw(t, name)
			slices.Sort(s)
			return s
		}
		a := set("a")
		b := set("b")
		indexes := Indexes(nil).With(a)
		both := indexes.With(b)
		var gaps, want []int32
		common := int32(0)
		for n := range int32(end) {
			inA := slices.Contains(a, n)
			inB := slices.Contains(b, n)
			if both.Has(n) != (inA || inB) {
				t.Fatalf("%s with %v: has %d is %v", indexes, b, n, both.Has(n))
			}
			if !inA && !inB {
				want = append(want, n)
			}
			if inA && inB {
				common++
			}
		}
		for n := range both.Gaps(end) {
			gaps = append(gaps, n)
		}
		if !slices.Equal(gaps, want) {
			t.Errorf("gaps of %s: got %v, want %v", both, gaps, want)
		}
		if got := indexes.Common(Indexes(nil).With(b)); got != common {
			t.Errorf("%v and %v have in common: got %d, want %d", a, b, got, common)
		}
		if got := ReadIndexes(both.String(), end); got.String() != both.String() ||
			got.Count() != int32(end-len(want)) {
			t.Errorf("%s is read as %s of %d", both, got, got.Count())
		}
		if _, err := parseIndexes(both.String(), end); err != nil {
			t.Errorf("the API would refuse %s: %v", both, err)
		}
	})
}

func FuzzReadIndexes(f *testing.F) {
	f.Add("1,3-5,7", int32(10))
	f.Add("0-99999", int32(5))
	f.Add("-1,,4-", int32(3))
	f.Fuzz(func(t *testing.T, text string, end int32) {
		x := ReadIndexes(text, end)
		if again, err := parseIndexes(x.String(), end); err != nil || again.Count() != x.Count() {
			t.Errorf("%q below %d is read as %s, which is not valid: %v", text, end, x, err)
		}
	})
}

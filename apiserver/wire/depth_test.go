// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"
	"testing"
)

func TestDepth(t *testing.T) {
	for doc, want := range map[string]int{
		"":                                   0,
		"null":                               0,
		"[[[ in: yaml":                       3,
		"a: [[[":                             0,
		`{"a":{"b":[1,{}]},"c":{}}`:          4,
		`{"[[[\\\"[[[":"]"}`:                 1,
		" [ ]":                               1,
		strings.Repeat(`{"a":`, 5000):        maxDepth + 1,
		`{"a":"` + strings.Repeat("[", 5000): 1,
	} {
		if got, _ := measure([]byte(doc)); got != want {
			t.Errorf("%.40s: got %d, want %d", doc, got, want)
		}
	}
	for _, body := range []string{strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000), "a: " +
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000)} {
		if _, err := DecodeApply([]byte(body), Ignore, func(string) {}); err == nil ||
			!strings.Contains(err.Error(), "exceeded max depth") {
			t.Errorf("apply of %.20s: got %v", body, err)
		}
	}
}

func FuzzDepth(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\\"]}`, "[", `"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if d, _ := measure(doc); d < 0 || d > maxDepth+1 || d > len(doc) {
			t.Errorf("depth %d of %d bytes", d, len(doc))
		}
	})
}

// TestManyParts: a document of many small objects or lists is refused before they are made.
func TestManyParts(t *testing.T) {
	for part, n := range map[string]int{
		`{}`:         1 << 20,
		`[]`:         1 << 20,
		`[{"a":[]}]`: maxParts / 3,
		`"{[{"`:      1 << 20,
	} {
		doc := `{"items":[` + strings.TrimSuffix(strings.Repeat(part+",", n), ",") + `]}`
		want := ""
		if part != `"{[{"` && n*strings.Count(part, "{")+n*strings.Count(part, "[")+2 > maxParts {
			want = "limit is 100000 objects and lists"
		}
		switch err := CheckDepth([]byte(doc)); {
		case want == "" && err != nil:
			t.Errorf("%d times %s: %v", n, part, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%d times %s: got %v, want %q", n, part, err, want)
		}
	}
}

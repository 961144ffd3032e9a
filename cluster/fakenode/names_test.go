// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"fmt"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for text, want := range map[string]string{
		"0":             "0 []",
		"3":             "3 []",
		"node01,node02": "0 [node01 node02]",
		"node01,100":    "100 [node01]",
		"2, a":          "2 [a]",
		"":              "names of them",
		"1,2":           "two numbers",
		"a,,b":          "names of them",
		"a,a":           "named twice",
		"A":             "lowercase",
		"-1":            "between 0 and 20000",
		"20000,a":       "20001 fake nodes",
		"fake-1,2":      "numbered",
		"fake-2,2":      "2 [fake-2]",
		"here":          "this machine's node",
	} {
		count, names, err := Parse(text)
		if err == nil {
			err = Validate(count, names, "here")
		}
		got := fmt.Sprint(count, names)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"
)

func TestFakeNodes(t *testing.T) {
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
		c := Config{DataDir: "/d", NodeName: "here"}
		var err error
		if c.FakeNodes, c.FakeNames, err = ParseFakeNodes(text); err == nil {
			err = c.validateFakes()
		}
		got := fmt.Sprint(c.FakeNodes, c.FakeNames)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

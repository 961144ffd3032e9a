// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"strings"
	"testing"

	"keelson/auth"
	"keelson/auth/remote"
)

func TestLive(t *testing.T) {
	rbac := always{auth.NoOpinion, "rbac"}
	const first = "authorizers: [{type: RBAC, name: rbac}]\n"
	live, err := NewLive(configOf(first), always{auth.Deny, "node"}, rbac, remote.Via{})
	if err != nil {
		t.Fatal(err)
	}
	bob := &auth.Attributes{User: &auth.User{Name: "bob"}, Verb: "get", Path: "/x"}
	verdict := func() auth.Verdict {
		t.Helper()
		d, err := live.Authorize(t.Context(), bob)
		if err != nil {
			t.Fatal(err)
		}
		return d.Verdict
	}
	if verdict() != auth.NoOpinion || live.Unlisted() || live.Everybody() {
		t.Error("at first: not as configured")
	}
	if err := live.Apply(
		configOf("authorizers: [{type: RBAC, name: rbac}, {type: AlwaysAllow, name: alwaysallow}]\n")); err != nil {
		t.Fatal(err)
	}
	if verdict() != auth.Allow || !live.Unlisted() || !live.Everybody() {
		t.Error("applied: not as configured")
	}
	for text, want := range map[string]string{
		"authorizers: [{type: AlwaysAllow, name: alwaysallow}]\n": "missing required types: [RBAC]",
		"authorizers: [{type: RBAC, name: rbac}, {type: Node, name: node}]\n": "authorizer type Node is not " +
			"allowed if it was not enabled at initial server startup",
		"authorizers: [{type: RBAC, name: rbac}, {type: Nonsense, name: nonsense}]": `Unsupported value: "Nonsense"`,
	} {
		if err := live.Apply(configOf(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if verdict() != auth.Allow {
			t.Errorf("%s: it changed something", text)
		}
	}
}

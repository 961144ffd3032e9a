// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"testing"

	"keelson/lib/connlimit"
)

func TestOwner(t *testing.T) {
	for _, tt := range []struct {
		user User
		want connlimit.Owner
	}{
		{User{Name: "alice"}, connlimit.Owner{Name: "alice"}},
		{
			User{Name: "root", Groups: []string{Authenticated, Masters}},
			connlimit.Owner{Name: "root", Rank: connlimit.Admin},
		},
		{
			User{Name: "system:kube-scheduler", How: InProcess},
			connlimit.Owner{Name: "system:kube-scheduler", Rank: connlimit.Admin},
		},
		{
			User{Name: "system:node:n1", Groups: []string{Nodes}},
			connlimit.Owner{Name: "system:node:n1", Rank: connlimit.System},
		},
		{User{Name: "system:kube-scheduler"}, connlimit.Owner{Name: "system:kube-scheduler", Rank: connlimit.System}},
		{User{Name: "system:bootstrap:abcdef"}, connlimit.Owner{Name: "system:bootstrap:abcdef"}},
		{User{Name: "system:anonymous"}, connlimit.Owner{Name: "system:anonymous"}},
		{User{Name: "system:serviceaccount:team:a"}, connlimit.Owner{Name: "system:serviceaccount:team"}},
		{User{Name: "system:serviceaccount:team:b"}, connlimit.Owner{Name: "system:serviceaccount:team"}},
		{
			User{Name: "system:serviceaccount:kube-system:dns"},
			connlimit.Owner{Name: "system:serviceaccount:kube-system:dns", Rank: connlimit.System},
		},
	} {
		if got := tt.user.Owner(); got != tt.want {
			t.Errorf("%q: got %+v, want %+v", tt.user.Name, got, tt.want)
		}
	}
}

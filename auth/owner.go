// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"slices"
	"strings"

	"keelson/lib/connlimit"
)

// Prefixes of user names that Kubernetes gives out itself.
const (
	systemPrefix         = "system:"
	serviceAccountPrefix = "system:serviceaccount:"
	bootstrapPrefix      = "system:bootstrap:"
	systemNamespace      = "kube-system"
)

// Owner returns as whom u shares connections and streams with others. The service accounts of a namespace count as one
// tenant: a client that may create one of them may create thousands. Nodes, components and the accounts of kube-system
// are systems, one by one.
func (u *User) Owner() connlimit.Owner {
	if u.InProcess() || slices.Contains(u.Groups, Masters) {
		return connlimit.Owner{Name: u.Name, Rank: connlimit.Admin}
	}
	if account, ok := strings.CutPrefix(u.Name, serviceAccountPrefix); ok {
		namespace, _, _ := strings.Cut(account, ":")
		if namespace == systemNamespace {
			return connlimit.Owner{Name: u.Name, Rank: connlimit.System}
		}
		return connlimit.Owner{Name: serviceAccountPrefix + namespace}
	}
	tenant := strings.HasPrefix(u.Name, bootstrapPrefix) || u.Name == Anonymous
	if strings.HasPrefix(u.Name, systemPrefix) && !tenant {
		return connlimit.Owner{Name: u.Name, Rank: connlimit.System}
	}
	return connlimit.Owner{Name: u.Name}
}

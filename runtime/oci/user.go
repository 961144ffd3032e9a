// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	sysuser "github.com/moby/sys/user"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// user holds the ids that the container runs with. groups holds the supplementary groups and the primary one.
type user struct {
	uid, gid uint32
	groups   []uint32
}

// resolveUser resolves the user of the security context, or else of the image. A name must be in the image's
// /etc/passwd; a number need not be.
func resolveUser(in Input, sec *runtimeapi.LinuxContainerSecurityContext) (user, error) {
	spec, err := userSpec(sec)
	if err != nil {
		return user{}, err
	}
	if spec == "" {
		spec = in.Image.User
	}
	// No default is passed: an unset group is the one of /etc/passwd.
	found, err := sysuser.GetExecUser(spec, nil, bytes.NewReader(in.Passwd), bytes.NewReader(in.Group))
	if err != nil {
		return user{}, invalid("user %q: %v", spec, err)
	}
	u := user{uid: uint32(found.Uid), gid: uint32(found.Gid)} // the library bounds ids
	u.groups = append(u.groups, u.gid)
	if sec.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge {
		for _, g := range memberOf(in, found.Uid, found.Sgids) {
			u.groups = append(u.groups, uint32(g)) // the library bounds ids
		}
	}
	for _, g := range sec.GetSupplementalGroups() {
		if g < 0 || g > 1<<31-1 {
			return user{}, invalid("supplemental group %d", g)
		}
		u.groups = append(u.groups, uint32(g))
	}
	slices.Sort(u.groups)
	u.groups = slices.Compact(u.groups)
	return u, nil
}

// memberOf adds the groups of /etc/group that list the user to found: the library leaves them out when a primary group
// is given.
func memberOf(in Input, uid int, found []int) []int {
	users, err := sysuser.ParsePasswdFilter(bytes.NewReader(in.Passwd), func(u sysuser.User) bool {
		return u.Uid == uid
	})
	if err != nil || len(users) == 0 {
		return found
	}
	groups, err := sysuser.ParseGroupFilter(bytes.NewReader(in.Group), func(g sysuser.Group) bool {
		return slices.Contains(g.List, users[0].Name)
	})
	if err != nil {
		return found
	}
	for _, g := range groups {
		found = append(found, g.Gid)
	}
	return found
}

// userSpec formats the user and group of the security context as "user:group", the form of an image's User.
func userSpec(sec *runtimeapi.LinuxContainerSecurityContext) (string, error) {
	spec := sec.GetRunAsUsername()
	if sec.GetRunAsUser() != nil {
		if sec.GetRunAsUser().GetValue() < 0 {
			return "", invalid("run as user %d", sec.GetRunAsUser().GetValue())
		}
		spec = strconv.FormatInt(sec.GetRunAsUser().GetValue(), 10)
	}
	if sec.GetRunAsGroup() == nil {
		return spec, nil
	}
	if spec == "" {
		return "", invalid("run as group %d without a user", sec.GetRunAsGroup().GetValue())
	}
	return fmt.Sprintf("%s:%d", spec, sec.GetRunAsGroup().GetValue()), nil
}

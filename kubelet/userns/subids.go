// SPDX-License-Identifier: Apache-2.0

package userns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// delegate is the user with the IDs for pods in /etc/subuid and /etc/subgid.
const delegate = "kubelet"

// askLimit is the time-out of getsubids, which may query a directory service.
const askLimit = 10 * time.Second

// Delegated returns the range of the user kubelet; ok is false if there is no such user, or no program getsubids.
func Delegated(ctx context.Context) (rng Range, ok bool, err error) {
	if _, err := user.Lookup(delegate); err != nil {
		return Range{}, false, nil // an unknown user has no range
	}
	program, err := exec.LookPath("getsubids")
	if err != nil {
		return Range{}, false, nil // as above
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	users, err := exec.CommandContext(ctx, program, delegate).Output()
	if err != nil {
		return Range{}, false, fmt.Errorf("ask for the user ids of %s (%s): %w", delegate, program, err)
	}
	groups, err := exec.CommandContext(ctx, program, "-g", delegate).Output()
	if err != nil {
		return Range{}, false, fmt.Errorf("ask for the group ids of %s (%s -g): %w", delegate, program, err)
	}
	if !bytes.Equal(bytes.TrimSpace(users), bytes.TrimSpace(groups)) {
		return Range{}, false, fmt.Errorf("/etc/subuid and /etc/subgid must give %s the same ids; they give %q and %q",
			delegate, users, groups)
	}
	if rng, err = parseSubIDs(string(users)); err != nil {
		return Range{}, false, fmt.Errorf("ids of %s: %w", delegate, err)
	}
	return rng, true, nil
}

// parseSubIDs parses the output of getsubids: "0: kubelet 65536 7208960".
func parseSubIDs(out string) (Range, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 1 {
		return Range{}, errors.New("there must be one range")
	}
	f := strings.Fields(lines[0])
	if len(f) != 4 {
		return Range{}, fmt.Errorf("getsubids printed %q, which does not have four fields", lines[0])
	}
	first, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("first id: %w", err)
	}
	count, err := strconv.ParseUint(f[3], 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("number of ids: %w", err)
	}
	return Range{First: uint32(first), Count: uint32(count)}, nil
}

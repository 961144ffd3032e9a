// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/lru"

	"keelson/api/invalid"
	"keelson/auth"
)

const (
	// modeCacheSize is the number of users whose last mode is remembered.
	modeCacheSize = 10_000
	// wildcardCheckMin is the number of groups, or extra values, from which the right to all of them is checked first.
	wildcardCheckMin = 4
	nodePrefix       = "system:node:"
	nodeNameKey      = "authentication.kubernetes.io/node-name"
	nodeKeysKey      = "authentication.kubernetes.io/associated-node-keys"
	authnGroup       = "authentication.k8s.io"
	associated       = "associated-node"
	anotherNode      = "arbitrary-node"
	anotherSA        = "serviceaccount"
	anotherUser      = "user-info"
	unrestricted     = "" // the plain verb "impersonate": without restriction
)

// modes are the ways to impersonate, in the order of the attempts. Except in the last one, the right to impersonate
// somebody (impersonate:MODE) is separate from the right to an action as somebody (impersonate-on:MODE:VERB); KEP 5284.
var modes = []string{associated, anotherNode, anotherSA, anotherUser, unrestricted}

// modeApplies reports whether a mode can have the wanted identity.
func modeApplies(mode string, wanted, requester *auth.User) bool {
	node, isNode := nodeOf(wanted.Name)
	_, _, isAccount := serviceAccount(wanted.Name)
	alone := wanted.UID == "" && len(wanted.Groups) == 0 && len(wanted.Extra) == 0
	switch mode {
	case associated:
		on, byPod := AccountNode(requester)
		return alone && isNode && byPod && on == node
	case anotherNode:
		return alone && isNode
	case anotherSA:
		return alone && isAccount
	case anotherUser:
		return !isNode && !isAccount
	}
	return true
}

// impersonated returns the complete identity and the verb of the mode that allows it; empty for the unrestricted one.
// The last mode of a user is tried first, and its rejection is the error.
func (c *Config) impersonated(
	ctx context.Context, rq *Request, wanted *auth.User, modeCache *lru.Cache,
) (as *auth.User, verb string, err error) {
	order := modes
	if m, ok := modeCache.Get(rq.User.Name); ok {
		first, _ := m.(string)
		order = append([]string{first}, slices.DeleteFunc(slices.Clone(modes), func(m string) bool {
			return m == first
		})...)
	}
	for _, mode := range order {
		if !modeApplies(mode, wanted, rq.User) {
			continue
		}
		as, refusal := c.impersonatedBy(ctx, rq, mode, wanted)
		if refusal != nil {
			if err == nil {
				err = refusal
			}
			continue
		}
		modeCache.Add(rq.User.Name, mode)
		if mode == unrestricted {
			return as, "", nil
		}
		return as, "impersonate:" + mode, nil
	}
	if err == nil {
		err = errors.New("all impersonation modes failed")
	}
	return nil, "", err
}

// impersonatedBy returns the identity if one mode allows it.
func (c *Config) impersonatedBy(ctx context.Context, rq *Request, mode string, wanted *auth.User) (*auth.User, error) {
	i := &impersonator{
		c:         c,
		mode:      mode,
		verb:      "impersonate",
		requester: rq.User,
	}
	if mode != unrestricted {
		i.verb = "impersonate:" + mode
		i.group = authnGroup
		if mode == associated { // all pods of an account have the same identity
			own := *rq.User
			own.Extra = map[string][]string{nodeKeysKey: slices.Sorted(maps.Keys(rq.User.Extra))}
			i.requester = &own
		}
		a := Attributes(rq)
		a.User = i.requester
		a.Verb = "impersonate-on:" + mode + ":" + a.Verb
		if err := c.authorize(ctx, a); err != nil {
			return nil, err
		}
	}
	as := *wanted
	if err := i.name(ctx, &as); err != nil {
		return nil, err
	}
	if as.UID != "" {
		if err := i.check(ctx, auth.Attributes{Group: authnGroup, Resource: "uids", Name: as.UID}); err != nil {
			return nil, err
		}
	}
	if err := i.groups(ctx, wanted.Groups); err != nil {
		return nil, err
	}
	if err := i.extras(ctx, wanted.Extra); err != nil {
		return nil, err
	}
	implied := auth.Authenticated
	if as.Name == auth.Anonymous {
		implied = auth.Unauthenticated
	}
	if !slices.Contains(as.Groups, implied) && !slices.Contains(as.Groups, auth.Unauthenticated) {
		as.Groups = append(slices.Clone(as.Groups), implied)
	}
	return &as, nil
}

// impersonator checks the rights for one impersonation.
type impersonator struct {
	c         *Config
	mode      string
	verb      string
	group     string // API group of users, groups, nodes and service accounts
	requester *auth.User
}

func (i *impersonator) attributes(a auth.Attributes) *auth.Attributes {
	a.User = i.requester
	a.Verb = i.verb
	a.Version = "v1"
	a.ResourceRequest = true
	return &a
}

func (i *impersonator) check(ctx context.Context, a auth.Attributes) error {
	return i.c.authorize(ctx, i.attributes(a))
}

// name checks the right to the user name; the groups of nodes and service accounts follow from it.
func (i *impersonator) name(ctx context.Context, as *auth.User) error {
	attrs := auth.Attributes{Group: i.group, Resource: "users", Name: as.Name}
	if node, ok := nodeOf(as.Name); ok && i.mode != unrestricted {
		if attrs.Resource, attrs.Name = "nodes", node; i.mode == associated {
			attrs.Name = "*"
		}
		as.Groups = []string{auth.Nodes}
	}
	if ns, account, ok := serviceAccount(as.Name); ok {
		attrs.Resource = "serviceaccounts"
		attrs.Namespace = ns
		attrs.Name = account
		if len(as.Groups) == 0 {
			as.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + ns}
		}
	}
	return i.check(ctx, attrs)
}

func (i *impersonator) groups(ctx context.Context, groups []string) error {
	ask := func(name string) auth.Attributes {
		return auth.Attributes{Group: i.group, Resource: "groups", Name: name}
	}
	if i.mode != unrestricted {
		switch {
		case slices.Contains(groups, ""):
			return Forbidden(i.attributes(ask("")), "impersonating the empty string group is not allowed")
		case slices.Contains(groups, auth.Masters):
			return Forbidden(i.attributes(ask(auth.Masters)), "impersonating the system:masters group is not allowed")
		case len(groups) >= wildcardCheckMin && i.check(ctx, ask("*")) == nil:
			return nil
		}
	}
	for _, g := range groups {
		if err := i.check(ctx, ask(g)); err != nil {
			return err
		}
	}
	return nil
}

func (i *impersonator) extras(ctx context.Context, extra map[string][]string) error {
	ask := func(key, value string) auth.Attributes {
		return auth.Attributes{
			Group:       authnGroup,
			Resource:    "userextras",
			Subresource: key,
			Name:        value,
		}
	}
	if i.mode != unrestricted && len(extra) > 0 {
		if err := checkExtra(extra); err != nil {
			return Forbidden(i.attributes(ask("", "")), err.Error())
		}
		values := 0
		for _, vs := range extra {
			values += len(vs)
		}
		if values >= wildcardCheckMin && i.check(ctx, ask("*", "*")) == nil {
			return nil
		}
	}
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		for _, value := range extra[key] {
			if err := i.check(ctx, ask(key, value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkExtra rejects extra values that only the unrestricted mode allows.
func checkExtra(extra map[string][]string) error {
	for key, values := range extra {
		if key == "" {
			return errors.New("impersonating the empty string key in extra is not allowed")
		}
		if err := invalid.Error(validation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key)); err != nil {
			return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
		}
		switch {
		case key != strings.ToLower(key):
			return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
		case len(values) == 0:
			return errors.New("impersonating empty values in extra is not allowed")
		case slices.Contains(values, ""):
			return errors.New("impersonating the empty string value in extra is not allowed")
		}
	}
	return nil
}

func nodeOf(name string) (string, bool) {
	node, ok := strings.CutPrefix(name, nodePrefix)
	return node, ok && len(metavalidation.NameIsDNSSubdomain(node, false)) == 0
}

func serviceAccount(name string) (ns, account string, ok bool) {
	rest, ok := strings.CutPrefix(name, "system:serviceaccount:")
	if !ok {
		return "", "", false
	}
	ns, account, ok = strings.Cut(rest, ":")
	return ns, account, ok && len(metavalidation.ValidateNamespaceName(ns, false)) == 0 &&
		len(metavalidation.ValidateServiceAccountName(account, false)) == 0
}

// AccountNode returns the node of a pod that uses its service account's token.
func AccountNode(u *auth.User) (node string, ok bool) {
	if _, _, account := serviceAccount(u.Name); !account {
		return "", false
	}
	on := u.Extra[nodeNameKey]
	if len(on) != 1 || on[0] == "" {
		return "", false
	}
	return on[0], true
}

// authorize calls the authorizer; an error counts as a rejection and is part of the message.
func (c *Config) authorize(ctx context.Context, attrs *auth.Attributes) error {
	begin := time.Now()
	d, err := c.Authorizer.Authorize(ctx, attrs)
	c.Metrics.decided(d, err, time.Since(begin))
	switch {
	case d.Verdict == auth.Allow:
		return nil
	case err != nil && d.Reason != "":
		return Forbidden(attrs, fmt.Sprintf("%v: %s", err, d.Reason))
	case err != nil:
		return Forbidden(attrs, err.Error())
	}
	return Forbidden(attrs, d.Reason)
}

// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"

	"keelson/auth"
	"keelson/auth/remote"
)

// Live holds the authorizers of an AuthorizationConfiguration that can be reloaded.
type Live struct {
	node, rbac auth.Authorizer
	via        remote.Via
	// needed are the initial authorizer types except webhooks. A reload must not remove them.
	needed  sets.Set[string]
	current atomic.Pointer[named]
}

type named struct {
	union     Union
	unlisted  bool
	everybody bool
}

// NewLive starts with the configuration in b; node and rbac are the cluster's own. Webhooks are called through via.
func NewLive(b []byte, node, rbac auth.Authorizer, via remote.Via) (*Live, error) {
	l := &Live{node: node, rbac: rbac, via: via}
	c, err := ParseConfig(b)
	if err != nil {
		return nil, err
	}
	l.needed = c.types()
	return l, l.use(c)
}

// Apply switches to the configuration in b; on an error nothing changes.
func (l *Live) Apply(b []byte) error {
	config, err := ParseConfig(b)
	if err != nil {
		return err
	}
	if gone := l.needed.Difference(config.types()); gone.Len() > 0 {
		return fmt.Errorf("missing required types: %v", sets.List(gone))
	}
	if more := config.types().Difference(l.needed).Intersection(sets.New(ModeNode, ModeRBAC)); more.Len() > 0 {
		return fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup",
			sets.List(more)[0])
	}
	return l.use(config)
}

func (l *Live) use(c *Config) error {
	u, unlisted, err := c.Union(l.node, l.rbac, l.via)
	if err != nil {
		return err
	}
	l.current.Store(&named{union: u, unlisted: unlisted, everybody: c.types().Has(ModeAlwaysAllow)})
	return nil
}

// Authorize asks the current authorizers.
func (l *Live) Authorize(ctx context.Context, a *auth.Attributes) (auth.Decision, error) {
	return l.current.Load().union.Authorize(ctx, a)
}

// Unlisted reports whether one of them cannot list its rules.
func (l *Live) Unlisted() bool { return l.current.Load().unlisted }

// Everybody reports whether AlwaysAllow is one of them.
func (l *Live) Everybody() bool { return l.current.Load().everybody }

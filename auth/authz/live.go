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

// Live is who an AuthorizationConfiguration names, which may change while it is asked.
type Live struct {
	node, rbac auth.Authorizer
	via        remote.Via
	// needed are the types beside webhooks that were there at first: they may not go.
	needed  sets.Set[string]
	current atomic.Pointer[named]
}

type named struct {
	union    Union
	unlisted bool
}

// NewLive begins with the configuration in b; node and rbac are the cluster's own. Webhooks are reached via via.
func NewLive(b []byte, node, rbac auth.Authorizer, via remote.Via) (*Live, error) {
	l := &Live{node: node, rbac: rbac, via: via}
	c, err := ParseConfig(b)
	if err != nil {
		return nil, err
	}
	l.needed = c.types()
	return l, l.use(c)
}

// Apply changes to the configuration in b; with an error nothing is changed.
func (l *Live) Apply(b []byte) error {
	c, err := ParseConfig(b)
	if err != nil {
		return err
	}
	if gone := l.needed.Difference(c.types()); gone.Len() > 0 {
		return fmt.Errorf("missing required types: %v", sets.List(gone))
	}
	if more := c.types().Difference(l.needed).Intersection(sets.New(ModeNode, ModeRBAC)); more.Len() > 0 {
		return fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", sets.List(more)[0])
	}
	return l.use(c)
}

func (l *Live) use(c *Config) error {
	u, unlisted, err := c.Union(l.node, l.rbac, l.via)
	if err != nil {
		return err
	}
	l.current.Store(&named{u, unlisted})
	return nil
}

// Authorize asks whoever is named now.
func (l *Live) Authorize(ctx context.Context, a *auth.Attributes) (auth.Decision, error) {
	return l.current.Load().union.Authorize(ctx, a)
}

// Unlisted tells whether one of them decides without a list of rules.
func (l *Live) Unlisted() bool { return l.current.Load().unlisted }

// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"keelson/auth"
)

// Live are the issuers of an AuthenticationConfiguration, which may change while it is asked.
type Live struct {
	taken   []string
	via     Via
	first   *Config
	current atomic.Pointer[Config]
}

// NewLive begins with the configuration in b. The tokens of the issuers in taken are somebody else's. Issuers are reached by via,
// which may be nil.
func NewLive(b []byte, taken []string, via Via) (*Live, error) {
	c, err := ParseConfig(b, taken, via)
	if err != nil {
		return nil, err
	}
	l := &Live{taken: taken, via: via, first: c}
	l.current.Store(c)
	return l, nil
}

// First is the configuration that it began with.
func (l *Live) First() *Config { return l.first }

// issuersTimeout bounds how long the issuers of a new configuration may take to say where their keys are.
const issuersTimeout = time.Minute

// Apply changes to the configuration in b, once all of its issuers could be asked for their keys; what it says of anonymous requests must
// be what was said at first. With an error nothing is changed.
func (l *Live) Apply(ctx context.Context, b []byte) error {
	c, err := ParseConfig(b, l.taken, l.via)
	if err != nil {
		return err
	}
	if c.Strangers != l.first.Strangers || !reflect.DeepEqual(c.Anonymous, l.first.Anonymous) {
		return errors.New("anonymous: Forbidden: changed from initial configuration file")
	}
	ctx, cancel := context.WithTimeout(ctx, issuersTimeout)
	defer cancel()
	for _, o := range c.JWT {
		if err := o.wait(ctx); err != nil {
			return err
		}
	}
	l.current.Store(c)
	return nil
}

// Authenticate asks the issuer that the request's token says it is from.
func (l *Live) Authenticate(r *http.Request) (*auth.User, bool, error) {
	for _, o := range l.current.Load().JWT {
		if u, ok, err := o.Authenticate(r); ok || err != nil {
			return u, ok, err
		}
	}
	return nil, false, nil
}

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

// Live authenticates by the JWT issuers of an AuthenticationConfiguration that can be reloaded.
type Live struct {
	taken   []string
	via     Via
	first   *Config
	current atomic.Pointer[Config]
}

// NewLive starts with the configuration in b. The issuers in taken belong to another authenticator. Issuers are called
// through via, which may be nil.
func NewLive(b []byte, taken []string, via Via) (*Live, error) {
	c, err := ParseConfig(b, taken, via)
	if err != nil {
		return nil, err
	}
	l := &Live{taken: taken, via: via, first: c}
	l.current.Store(c)
	return l, nil
}

// First is the configuration at the start.
func (l *Live) First() *Config { return l.first }

// issuersTimeout limits the discovery of the issuers of a new configuration.
const issuersTimeout = time.Minute

// Apply switches to the configuration in b after the discovery of all its issuers has succeeded. The setting for
// anonymous requests must not change. On an error nothing changes.
func (l *Live) Apply(ctx context.Context, b []byte) error {
	config, err := ParseConfig(b, l.taken, l.via)
	if err != nil {
		return err
	}
	if config.Strangers != l.first.Strangers || !reflect.DeepEqual(config.Anonymous, l.first.Anonymous) {
		return errors.New("anonymous: Forbidden: changed from initial configuration file")
	}
	ctx, cancel := context.WithTimeout(ctx, issuersTimeout)
	defer cancel()
	for _, o := range config.JWT {
		if err := o.wait(ctx); err != nil {
			return err
		}
	}
	l.current.Store(config)
	return nil
}

// Authenticate passes the token to the issuer that it names.
func (l *Live) Authenticate(r *http.Request) (*auth.User, bool, error) {
	for _, o := range l.current.Load().JWT {
		if u, ok, err := o.Authenticate(r); ok || err != nil {
			return u, ok, err
		}
	}
	return nil, false, nil
}

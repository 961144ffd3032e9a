// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"crypto"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/prometheus/client_golang/prometheus"

	"keelson/auth"
	"keelson/pki"
)

// tokenUse are Kubernetes' metrics serviceaccount_*_total about service-account tokens in use.
type tokenUse struct {
	valid, stale, legacy, manual, auto, invalid prometheus.Counter

	mu sync.Mutex
	// further are the last uses of tokens by user, for each key that verifies in addition to the one that signs.
	further map[string]map[string]time.Time
}

func newTokenUse() *tokenUse {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "serviceaccount_" + name + "_total", Help: help})
	}
	return &tokenUse{
		further: map[string]map[string]time.Time{},
		valid: counter("valid_tokens",
			"Uses of extended service account tokens within the time they were asked for."),
		stale:   counter("stale_tokens", "Uses of extended service account tokens after the time they were asked for."),
		legacy:  counter("legacy_tokens", "Uses of service account tokens that are kept in secrets."),
		manual:  counter("legacy_manual_token_uses", "Uses of tokens in secrets that somebody made."),
		auto:    counter("legacy_auto_token_uses", "Uses of tokens in secrets that a service account lists."),
		invalid: counter("invalid_legacy_auto_token_uses", "Uses of tokens in secrets that are marked as invalid."),
	}
}

// Collectors are the metrics of token use.
func (t *Tokens) Collectors() []prometheus.Collector {
	u := t.used
	return []prometheus.Collector{u.valid, u.stale, u.legacy, u.manual, u.auto, u.invalid}
}

// noteKey notes the use of a token of another key than the one that signs.
func (u *tokenUse) noteKey(id, user string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	of := u.further[id]
	if of == nil {
		of = map[string]time.Time{}
		u.further[id] = of
	}
	if _, listed := of[user]; listed || len(of) < mostSeen {
		of[user] = now
	}
}

// Users returns users by the last use of a token that one of the keys has signed, which do not sign any more.
func (t *Tokens) Users(keys []crypto.PublicKey) map[string]time.Time {
	out := map[string]time.Time{}
	t.used.mu.Lock()
	defer t.used.mu.Unlock()
	for _, key := range keys {
		id, err := pki.KeyID(key)
		if err != nil {
			continue // it verifies nothing
		}
		for user, at := range t.used.further[id] {
			if at.After(out[user]) {
				out[user] = at
			}
		}
	}
	return out
}

// noteAge counts a token with extended lifetime as valid or stale; stale means used after the requested lifetime.
func (u *tokenUse) noteAge(who *auth.User, subject string, warn *jwt.NumericDate, now time.Time) {
	if warn == nil || *warn == 0 {
		return
	}
	if !now.After(warn.Time()) {
		u.valid.Inc()
		return
	}
	u.stale.Inc()
	who.Annotations = map[string]string{
		"authentication.k8s.io/stale-token": fmt.Sprintf("subject: %s, seconds after warning threshold: %d", subject,
			now.Unix()-warn.Time().Unix()),
	}
}

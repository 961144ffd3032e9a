// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/prometheus/client_golang/prometheus"

	"keelson/auth"
)

// tokenUse are Kubernetes' metrics serviceaccount_*_total about service-account tokens in use.
type tokenUse struct {
	valid, stale, legacy, manual, auto, invalid prometheus.Counter
}

func newTokenUse() tokenUse {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "serviceaccount_" + name + "_total", Help: help})
	}
	return tokenUse{
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
	u := &t.used
	return []prometheus.Collector{u.valid, u.stale, u.legacy, u.manual, u.auto, u.invalid}
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

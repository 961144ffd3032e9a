// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"slices"

	"keelson/auth"
)

// permits is an authorizer that allows what is listed as "verb name".
type permits []string

func (p permits) Authorize(_ context.Context, a *auth.Attributes) (auth.Decision, error) {
	if slices.Contains(p, a.Verb+" "+a.Name) {
		return auth.Decision{Verdict: auth.Allow}, nil
	}
	return auth.Decision{}, nil
}

// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/auth"
)

// BootstrapTokens authenticates joining machines by bootstrap token: "id.secret" is stored in the secret
// bootstrap-token-<id> of kube-system (Kubernetes documentation, "Authenticating with Bootstrap Tokens").
type BootstrapTokens struct {
	// Secret returns a secret of kube-system, or nil. It is shared and never modified.
	Secret func(ctx context.Context, name string) *corev1.Secret
	// Now is the clock; nil: the real one.
	Now func() time.Time
}

const (
	bootstrapSecretType  = "bootstrap.kubernetes.io/token"
	bootstrapSecretName  = "bootstrap-token-"
	bootstrapGroup       = "system:bootstrappers"
	bootstrapUsers       = "system:bootstrap:"
	bootstrapUsage       = "usage-bootstrap-authentication"
	bootstrapExpiration  = "expiration"
	bootstrapExtraGroups = "auth-extra-groups"
)

var (
	bootstrapToken = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)
	// At most longestSubgroup bytes; {0,255} here would take a third of a millisecond of every process's start.
	bootstrapSubgroup = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]*[a-z0-9]$`)
)

// longestSubgroup is what Kubernetes allows: 256 bytes after the prefix.
const longestSubgroup = len("system:bootstrappers:") + 256

// isSubgroup reports whether bootstrap tokens may give a group.
func isSubgroup(group string) bool {
	return len(group) <= longestSubgroup && bootstrapSubgroup.MatchString(group)
}

// Authenticate handles tokens of the form "id.secret".
func (b BootstrapTokens) Authenticate(r *http.Request) (*auth.User, bool, error) {
	parts := bootstrapToken.FindStringSubmatch(Bearer(r))
	if parts == nil {
		return nil, false, nil
	}
	id := parts[1]
	secret := parts[2]
	s := b.Secret(r.Context(), bootstrapSecretName+id)
	if s == nil || s.DeletionTimestamp != nil || s.Type != bootstrapSecretType {
		return nil, false, nil
	}
	if string(s.Data["token-id"]) != id || subtle.ConstantTimeCompare(s.Data["token-secret"], []byte(secret)) != 1 ||
		string(s.Data[bootstrapUsage]) != "true" || b.expired(s) {
		return nil, false, fmt.Errorf("%w: bootstrap token %s", ErrUnauthorized, id)
	}
	groups := []string{bootstrapGroup}
	for g := range strings.SplitSeq(string(s.Data[bootstrapExtraGroups]), ",") {
		g = strings.TrimSpace(g)
		switch {
		case g == "" || slices.Contains(groups, g):
		case !isSubgroup(g):
			return nil, false, fmt.Errorf("%w: bootstrap token %s has group %q", ErrUnauthorized, id, g)
		default:
			groups = append(groups, g)
		}
	}
	return WithAuthenticated(&auth.User{Name: bootstrapUsers + id, Groups: groups, How: "bootstrap token"}), true, nil
}

func (b BootstrapTokens) expired(s *corev1.Secret) bool {
	text := string(s.Data[bootstrapExpiration])
	if text == "" {
		return false
	}
	end, err := time.Parse(time.RFC3339, text)
	now := time.Now
	if b.Now != nil {
		now = b.Now
	}
	return err != nil || !now().Before(end)
}

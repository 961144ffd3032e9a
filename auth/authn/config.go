// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/cel"

	"keelson/api/invalid"
	"keelson/auth"
	"keelson/lib/celenv"
)

// Config is a parsed AuthenticationConfiguration (apiserver.config.k8s.io).
type Config struct {
	// JWT are the accepted token issuers.
	JWT []*OIDC
	// Strangers reports whether the file configures anonymous requests; Anonymous is then their authenticator, or nil
	// if they are disabled.
	Strangers bool
	Anonymous *Anonymous
}

// ParseConfig parses and validates the document in b. The issuers in taken belong to another authenticator and are not
// allowed. Issuers are called through via, which may be nil.
func ParseConfig(b []byte, taken []string, via Via) (*Config, error) {
	known := runtime.NewScheme()
	install.Install(known)
	obj, err := runtime.Decode(serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDecoder(), b)
	if err != nil {
		return nil, fmt.Errorf("authentication configuration: %w", err)
	}
	configuration, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("authentication configuration: it is a %T, not an AuthenticationConfiguration", obj)
	}
	compiler := cel.NewCompiler(celenv.Base())
	if errs := validation.ValidateAuthenticationConfiguration(compiler, configuration, taken); len(errs) > 0 {
		return nil, fmt.Errorf("authentication configuration: %w", invalid.Error(errs))
	}
	config := &Config{}
	for _, j := range configuration.JWT {
		o, err := newJWT(j, compiler, taken, via)
		if err != nil {
			return nil, fmt.Errorf("authentication configuration: issuer %s: %w", j.Issuer.URL, err)
		}
		config.JWT = append(config.JWT, o)
	}
	if a := configuration.Anonymous; a != nil {
		config.Strangers = true
		if a.Enabled {
			config.Anonymous = &Anonymous{}
			for _, open := range a.Conditions {
				config.Anonymous.Paths = append(config.Anonymous.Paths, open.Path)
			}
		}
	}
	return config, nil
}

// algorithms are the accepted signature algorithms of configured issuers: all asymmetric ones.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512,
}

func newJWT(authenticator apiserver.JWTAuthenticator, compiler cel.Compiler, taken []string, via Via) (*OIDC, error) {
	expressions, errs := validation.CompileAndValidateJWTAuthenticator(compiler, authenticator, taken)
	if len(errs) > 0 {
		return nil, invalid.Error(errs)
	}
	var pem []byte
	if authenticator.Issuer.CertificateAuthority != "" {
		pem = []byte(authenticator.Issuer.CertificateAuthority)
	}
	transport, err := toIssuer(pem, via)
	if err != nil {
		return nil, err
	}
	if authenticator.Issuer.DiscoveryURL != "" {
		transport = elsewhere{transport, strings.TrimSuffix(authenticator.Issuer.URL, "/") +
			"/.well-known/openid-configuration", authenticator.Issuer.DiscoveryURL}
	}
	m := claims{j: authenticator, by: expressions}
	return &OIDC{
		issuer: authenticator.Issuer.URL,
		tokens: &oidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: algorithms},
		user:   m.user,
		client: &http.Client{Transport: transport, Timeout: oidcTimeout},
	}, nil
}

// elsewhere fetches the issuer's discovery document from another URL than the issuer's.
type elsewhere struct {
	http.RoundTripper
	from, to string
}

// RoundTrip redirects the request to the other URL.
func (e elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.String() != e.from {
		return e.RoundTripper.RoundTrip(r)
	}
	there, err := http.NewRequestWithContext(r.Context(), r.Method, e.to, http.NoBody)
	if err != nil {
		return nil, err
	}
	there.Header = r.Header.Clone()
	return e.RoundTripper.RoundTrip(there)
}

// claims maps the claims of an issuer's tokens to users.
type claims struct {
	j  apiserver.JWTAuthenticator
	by cel.CELMapper
}

func (m claims) user(ctx context.Context, c map[string]any) (*auth.User, error) {
	if !m.meant(c["aud"]) {
		return nil, fmt.Errorf("token audiences %v are none of %q", c["aud"], m.j.Issuer.Audiences)
	}
	value, err := celValue(c)
	if err != nil {
		return nil, err
	}
	u := &auth.User{How: "jwt of " + m.j.Issuer.URL}
	if u.Name, err = m.name(ctx, c, value); err != nil {
		return nil, err
	}
	if u.Groups, err = m.groups(ctx, c, value); err != nil {
		return nil, err
	}
	if u.UID, err = m.uid(ctx, c, value); err != nil {
		return nil, err
	}
	if u.Extra, err = m.extra(ctx, c, value); err != nil {
		return nil, err
	}
	if err := m.holds(ctx, c, value); err != nil {
		return nil, err
	}
	if err := m.acceptable(ctx, u); err != nil {
		return nil, err
	}
	return WithAuthenticated(u), nil
}

// meant reports whether one of the token's audiences is configured.
func (m claims) meant(aud any) bool {
	list, ok := aud.([]any)
	if !ok {
		list = []any{aud}
	}
	return slices.ContainsFunc(list, func(a any) bool {
		s, ok := a.(string)
		return ok && slices.Contains(m.j.Issuer.Audiences, s)
	})
}

func (m claims) name(ctx context.Context, c map[string]any, value traits.Mapper) (string, error) {
	if m.by.Username != nil {
		name, err := text(ctx, m.by.Username, value)
		if err == nil && name == "" {
			err = errors.New("the user's name is empty")
		}
		return name, err
	}
	name, err := nameOf(c, m.j.ClaimMappings.Username.Claim)
	if err != nil {
		return "", err
	}
	if p := m.j.ClaimMappings.Username.Prefix; p != nil {
		name = *p + name
	}
	return name, nil
}

func (m claims) groups(ctx context.Context, c map[string]any, value traits.Mapper) ([]string, error) {
	g := m.j.ClaimMappings.Groups
	if m.by.Groups == nil {
		prefix := ""
		if g.Prefix != nil {
			prefix = *g.Prefix
		}
		return groupsOf(c, g.Claim, prefix)
	}
	got, err := m.by.Groups.EvalClaimMapping(ctx, value)
	if err != nil {
		return nil, err
	}
	return texts(got.EvalResult)
}

func (m claims) uid(ctx context.Context, c map[string]any, value traits.Mapper) (string, error) {
	if m.by.UID != nil {
		return text(ctx, m.by.UID, value)
	}
	if claim := m.j.ClaimMappings.UID.Claim; claim != "" {
		uid, ok := c[claim].(string)
		if !ok {
			return "", fmt.Errorf("claim %q is not present, or no string", claim)
		}
		return uid, nil
	}
	return "", nil
}

func (m claims) extra(ctx context.Context, c map[string]any, value traits.Mapper) (map[string][]string, error) {
	out := credentialExtra(c)
	if m.by.Extra == nil {
		return out, nil
	}
	results, err := m.by.Extra.EvalClaimMappings(ctx, value)
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		list, err := texts(r.EvalResult)
		if err != nil {
			return nil, fmt.Errorf("extra: %w", err)
		}
		mapping, ok := r.ExpressionAccessor.(*cel.ExtraMappingExpression)
		if !ok || len(list) == 0 {
			continue
		}
		if out == nil {
			out = map[string][]string{}
		}
		out[mapping.Key] = list
	}
	return out, nil
}

// holds evaluates the claim validation rules.
func (m claims) holds(ctx context.Context, c map[string]any, value traits.Mapper) error {
	for _, rule := range m.j.ClaimValidationRules {
		if rule.Claim == "" {
			continue
		}
		if got, ok := c[rule.Claim].(string); !ok || got != rule.RequiredValue {
			return fmt.Errorf("required claim %s value does not match: got %v, want %s", rule.Claim, c[rule.Claim],
				rule.RequiredValue)
		}
	}
	if m.by.ClaimValidationRules == nil {
		return nil
	}
	results, err := m.by.ClaimValidationRules.EvalClaimMappings(ctx, value)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.EvalResult != celtypes.True {
			if rule, ok := r.ExpressionAccessor.(*cel.ClaimValidationCondition); ok {
				return fmt.Errorf("validation expression '%s' failed: %s", rule.Expression, rule.Message)
			}
			return fmt.Errorf("validation expression '%s' failed", r.ExpressionAccessor.GetExpression())
		}
	}
	return nil
}

// acceptable evaluates the user validation rules.
func (m claims) acceptable(ctx context.Context, u *auth.User) error {
	if m.by.UserValidationRules == nil {
		return nil
	}
	value, err := celValue(map[string]any{
		"username": u.Name,
		"uid":      u.UID,
		"groups":   u.Groups,
		"extra":    u.Extra,
	})
	if err != nil {
		return err
	}
	results, err := m.by.UserValidationRules.EvalUser(ctx, value)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.EvalResult != celtypes.True {
			if rule, ok := r.ExpressionAccessor.(*cel.UserValidationCondition); ok {
				return fmt.Errorf("validation expression '%s' failed: %s", rule.Expression, rule.Message)
			}
			return fmt.Errorf("validation expression '%s' failed", r.ExpressionAccessor.GetExpression())
		}
	}
	return nil
}

func celValue(m map[string]any) (traits.Mapper, error) {
	value, ok := celtypes.DefaultTypeAdapter.NativeToValue(m).(traits.Mapper)
	if !ok {
		return nil, fmt.Errorf("claims of %d fields cannot be shown to expressions", len(m))
	}
	return value, nil
}

// text evaluates an expression that must result in a string.
func text(ctx context.Context, by cel.ClaimsMapper, value traits.Mapper) (string, error) {
	got, err := by.EvalClaimMapping(ctx, value)
	if err != nil {
		return "", err
	}
	s, ok := got.EvalResult.Value().(string)
	if !ok {
		return "", fmt.Errorf("expression '%s' gives a %s, not a string", got.ExpressionAccessor.GetExpression(),
			got.EvalResult.Type().TypeName())
	}
	return s, nil
}

// texts converts a result that is a string, a list of strings, or null.
func texts(val ref.Val) ([]string, error) {
	if val == celtypes.NullValue {
		return nil, nil
	}
	if s, ok := val.Value().(string); ok {
		if s == "" {
			return nil, nil
		}
		return []string{s}, nil
	}
	list, ok := val.(traits.Lister)
	if !ok {
		return nil, fmt.Errorf("a %s is neither a string nor a list of strings", val.Type().TypeName())
	}
	var out []string
	for it := list.Iterator(); it.HasNext() == celtypes.True; {
		s, ok := it.Next().Value().(string)
		if !ok {
			return nil, errors.New("a list holds something else than strings")
		}
		if s != "" {
			out = append(out, s)
		}
	}
	return out, nil
}

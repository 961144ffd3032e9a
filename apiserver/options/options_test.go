// SPDX-License-Identifier: Apache-2.0

package options

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"keelson/auth/authz"
	"keelson/auth/remote"
	"keelson/cluster/flags"
)

// TestModes: the authorizers that flags ask for, and flags that contradict each other.
func TestModes(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string // of modes, or in the error
	}{
		{Options{}, "Node RBAC"},
		{Options{Authorization: Authorization{WebhookConfigFile: "f"}}, "Node RBAC Webhook"},
		{Options{Authorization: Authorization{Modes: []string{"RBAC"}}}, "RBAC"},
		{
			Options{Authorization: Authorization{Modes: []string{"Webhook", "RBAC"}, WebhookConfigFile: "f"}},
			"Webhook RBAC",
		},
		{
			Options{Authorization: Authorization{Modes: []string{"ABAC"}}},
			`authorization-mode "ABAC" is not a valid mode`,
		},
		{
			Options{Authorization: Authorization{Modes: []string{"RBAC", "RBAC"}}},
			`authorization-mode "RBAC" is specified more than once`,
		},
		{
			Options{Authorization: Authorization{Modes: []string{"RBAC"}, WebhookConfigFile: "f"}},
			"must be given together",
		},
		{Options{Authorization: Authorization{Modes: []string{authz.ModeWebhook}}}, "must be given together"},
		{Options{Authorization: Authorization{Modes: []string{"RBAC"}, ConfigFile: "f"}}, "exclude each other"},
		{
			Options{Tokens: ServiceAccountTokens{JWKSURI: "http://x"}},
			"service-account-jwks-uri requires https scheme, parsed as: http://x",
		},
		{Options{Tokens: ServiceAccountTokens{MaxExpiration: time.Minute}}, "must be between 1 hour and 2^32 seconds"},
	} {
		got := strings.Join(c.o.Authorization.modes(), " ")
		if err := c.o.Validate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.o, got, c.want)
		}
	}
}

// TestAlwaysAllowIsNotForStrangers: with the authorizer AlwaysAllow no request without a credential is authenticated,
// whatever turned anonymous access on.
func TestAlwaysAllowIsNotForStrangers(t *testing.T) {
	for _, modes := range [][]string{
		nil, {authz.ModeRBAC}, {authz.ModeAlwaysAllow}, {authz.ModeRBAC, authz.ModeAlwaysAllow},
	} {
		rights := Authorization{Modes: modes}
		authorizers, err := rights.New(nil, nil, nil, remote.Via{})
		if err != nil {
			t.Fatal(err)
		}
		var access Authentication
		all, err := access.New(nil, Dependencies{Everybody: authorizers.Everybody})
		if err != nil {
			t.Fatal(err)
		}
		_, ok, err := all[len(all)-1].Authenticate(httptest.NewRequest(http.MethodGet, "/api/v1/secrets", nil))
		if want := !slices.Contains(modes, authz.ModeAlwaysAllow); err != nil || ok != want {
			t.Errorf("modes %v: a stranger is authenticated: %v (%v), want %v", modes, ok, err, want)
		}
	}
}

// TestAuditLogBounds: an audit log is bounded unless it is said otherwise, as in Kubernetes since v1.36.
func TestAuditLogBounds(t *testing.T) {
	for _, c := range []struct {
		args []string
		want [3]int
	}{
		{nil, [3]int{100, 366, 100}},
		{[]string{"--audit-log-maxsize=0", "--audit-log-maxage=0", "--audit-log-maxbackup=0"}, [3]int{}},
	} {
		var o Audit
		fl := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.Add(fl, o.rows())
		if err := fl.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if got := [3]int{o.LogMaxSize, o.LogMaxAge, o.LogMaxBackups}; got != c.want || o.validate() != nil {
			t.Errorf("%q: MB, days, files %v (%v), want %v", c.args, got, o.validate(), c.want)
		}
	}
}

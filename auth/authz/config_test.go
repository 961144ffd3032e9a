// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"keelson/auth"
	"keelson/auth/remote"
)

// judgeService allows jane, denies mallory, knows no one else, and fails for the broken. It notes the versions it is
// asked in.
func judgeService(t *testing.T) (server *httptest.Server, versions func() []string) {
	t.Helper()
	var mu sync.Mutex
	var asked []string
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			APIVersion string `json:"apiVersion"`
			Spec       struct {
				User   string   `json:"user"`
				Group  []string `json:"group"`
				Groups []string `json:"groups"`
			} `json:"spec"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		mu.Lock()
		asked = append(asked, fmt.Sprint(q.APIVersion, q.Spec.Group, q.Spec.Groups))
		mu.Unlock()
		switch q.Spec.User {
		case "jane":
			_, _ = fmt.Fprint(w, `{"status":{"allowed":true,"reason":"she is known"}}`)
		case "mallory":
			_, _ = fmt.Fprint(w, `{"status":{"denied":true,"reason":"he is known"}}`)
		case "broken":
			http.Error(w, "no", http.StatusForbidden)
		default:
			_, _ = fmt.Fprint(w, `{"status":{}}`)
		}
	}))
	t.Cleanup(server.Close)
	return server, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return asked
	}
}

// configOf is a configuration whose first lines are always the same.
func configOf(text string) []byte {
	return []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n" + text)
}

// webhookText is a webhook's part of a configuration.
func webhookText(kubeconfig, version, policy, conditions string) string {
	return fmt.Sprintf(`- type: Webhook
  name: judge
  webhook:
    timeout: 5s
    authorizedTTL: 1m
    unauthorizedTTL: 1m
    subjectAccessReviewVersion: %s
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: %s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions: %s
`, version, policy, kubeconfig, conditions)
}

// TestAuthorizationConfig: who is asked, in which order, under which conditions, and what a failure means.
func TestAuthorizationConfig(t *testing.T) {
	s, versions := judgeService(t)
	kubeconfig := kubeconfigOf(t, s)
	rbac := always{auth.Allow, "rbac"}
	ask := func(user string, groups ...string) *auth.Attributes {
		return &auth.Attributes{
			User:            &auth.User{Name: user, Groups: groups},
			Verb:            "get",
			Resource:        "pods",
			Namespace:       "default",
			ResourceRequest: true,
		}
	}
	const rbacLast = "- {type: RBAC, name: rbac}\n"
	for _, c := range []struct {
		what, list string
		ask        *auth.Attributes
		want       auth.Decision
		failed     bool
	}{
		{
			"allowed by the service", webhookText(kubeconfig, "v1", "Deny", "[]") + rbacLast, ask("jane", "a"),
			auth.Decision{Verdict: auth.Allow, Reason: "she is known"},
			false,
		},
		{
			"denied by the service", webhookText(kubeconfig, "v1", "Deny", "[]") + rbacLast, ask("mallory"),
			auth.Decision{Verdict: auth.Deny, Reason: "he is known"},
			false,
		},
		{
			"not known to the service", webhookText(kubeconfig, "v1", "Deny", "[]") + rbacLast, ask("bob"),
			auth.Decision{Verdict: auth.Allow, Reason: "rbac"},
			false,
		},
		{
			"masters are not asked about", webhookText(kubeconfig, "v1", "Deny", "[]") + rbacLast,
			ask("mallory", auth.Masters),
			auth.Decision{Verdict: auth.Allow, Reason: "group system:masters"},
			false,
		},
		{
			"failure that denies", webhookText(kubeconfig, "v1", "Deny", "[]") + rbacLast, ask("broken"), auth.Decision{
				Verdict: auth.Deny,
			}, true,
		},
		{
			"failure without opinion", webhookText(kubeconfig, "v1", "NoOpinion", "[]") + rbacLast, ask("broken"),
			auth.Decision{Verdict: auth.Allow, Reason: "rbac"},
			false,
		},
		{
			"condition that does not hold",
			webhookText(kubeconfig, "v1", "Deny",
				`[{expression: 'request.resourceAttributes.namespace == "kube-system"'}]`) + rbacLast, ask("mallory"),
			auth.Decision{Verdict: auth.Allow, Reason: "rbac"},
			false,
		},
		{
			"condition that holds",
			webhookText(kubeconfig, "v1", "Deny",
				`[{expression: 'has(request.resourceAttributes)'}, {expression: '!("system:serviceaccounts" in request.groups)'}]`) +
				rbacLast,
			ask("mallory"),
			auth.Decision{Verdict: auth.Deny, Reason: "he is known"},
			false,
		},
		{
			"condition that fails",
			webhookText(kubeconfig, "v1", "Deny", `[{expression: 'request.nonResourceAttributes.path == "/x"'}]`) +
				rbacLast, ask("jane"),
			auth.Decision{Verdict: auth.Deny},
			true,
		},
		{
			"the old version", webhookText(kubeconfig, "v1beta1", "Deny", "[]"), ask("jane", "b"), auth.Decision{
				Verdict: auth.Allow,
				Reason:  "she is known",
			}, false,
		},
		{
			"everybody", "- {type: AlwaysAllow, name: alwaysallow}\n", ask("bob"),
			auth.Decision{Verdict: auth.Allow},
			false,
		},
		{
			"denied", "- {type: AlwaysDeny, name: alwaysdeny}\n", ask("bob"), auth.Decision{
				Reason: "Everything is forbidden.",
			}, false,
		},
		{
			"the first decides", "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n", ask("bob"), auth.Decision{
				Verdict: auth.Deny,
				Reason:  "node",
			}, false,
		},
	} {
		cfg, err := ParseConfig(configOf("authorizers:\n" + c.list))
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		u, _, err := cfg.Union(always{auth.Deny, "node"}, rbac, remote.Via{})
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		got, err := u.Authorize(t.Context(), c.ask)
		if got != c.want || (err != nil) != c.failed {
			t.Errorf("%s: %+v %v, want %+v", c.what, got, err, c.want)
		}
	}
	all := strings.Join(versions(), " ")
	for _, want := range []string{"authorization.k8s.io/v1[] [a]", "authorization.k8s.io/v1beta1[b] []"} {
		if !strings.Contains(all, want) {
			t.Errorf("asked %s, want %s among them", all, want)
		}
	}
}

func TestWrongAuthorizationConfigs(t *testing.T) {
	s, _ := judgeService(t)
	kubeconfig := kubeconfigOf(t, s)
	for text, want := range map[string]string{
		"authorizers: []\n": "at least one authorization mode must be " +
			"defined",
		"authorizers: [{type: ABAC, name: a}]\n":                        `type: Unsupported value: "ABAC"`,
		"authorizers: [{type: RBAC}]\n":                                 "name: Required value",
		"authorizers: [{type: Webhook, name: w}]":                       "required when type=Webhook",
		"authorizers: [{type: RBAC, name: a}, {type: RBAC, name: b}]\n": `type: Duplicate value: "RBAC"`,
		"authorizers:\n" + webhookText("/none", "v1", "Deny", "[]"):     "no such file",
		"authorizers:\n" + webhookText(kubeconfig, "v2", "Deny",
			"[]"): `Unsupported value: "v2"`,
		"authorizers:\n" + webhookText(kubeconfig, "v1", "Maybe",
			"[]"): `Unsupported value: "Maybe"`,
		"authorizers:\n" + webhookText(kubeconfig, "v1", "Deny",
			"[{expression: 'request.user'}]"): "must evaluate to bool",
		"more: 1\n": `unknown field "more"`,
	} {
		if _, err := ParseConfig(configOf(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := ParseConfig(configOf("authorizers: [{type: RBAC, name: rules}]\n")); err == nil ||
		!strings.Contains(err.Error(), "expected name rbac for authorizer RBAC instead of rules") {
		t.Errorf("another name than the type's: %v", err)
	}
}

// FuzzConfig: a configuration is read or refused; one that is read can be put to use.
func FuzzConfig(f *testing.F) {
	f.Add("authorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]\n")
	f.Add("authorizers: [{type: Webhook, name: w, webhook: {timeout: 3s, subjectAccessReviewVersion: v1, " +
		"failurePolicy: Deny, matchConditions: [{expression: 'request.user != \"a\"'}]}}]\n")
	f.Add("authorizers: [{type: RBAC, name: a}, {type: RBAC, name: b}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConfig(configOf(text))
		if (c == nil) == (err == nil) {
			t.Fatalf("%q: got %v and %v", text, c, err)
		}
		if err == nil && !c.types().Has(ModeWebhook) {
			_, _, _ = c.Union(Masters{}, Masters{}, remote.Via{}) // a webhook's kubeconfig may not be there
		}
	})
}

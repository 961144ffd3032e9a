// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/apiserver/options"
	"keelson/cluster"
	"keelson/cluster/datadir"
)

// services are an issuer of tokens and a judge of requests, both behind TLS.
type services struct {
	*httptest.Server
	sign func(name, group string) string
	ca   string
}

// judgesOutside runs them: the judge allows carol to read, and denies mallory everything.
func judgesOutside(t *testing.T) services {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	s := services{Server: httptest.NewTLSServer(mux)}
	t.Cleanup(s.Close)
	s.ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	tell := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		tell(w, map[string]any{"issuer": s.URL, "jwks_uri": s.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		tell(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
			Key:       key.Public(),
			KeyID:     "k",
			Algorithm: "ES256",
			Use:       "sig",
		}}})
	})
	mux.HandleFunc("/judge", func(w http.ResponseWriter, r *http.Request) {
		var q authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Errorf("the judge was asked nonsense: %v", err)
		}
		q.Status.Denied = q.Spec.User == "mallory"
		q.Status.Allowed = q.Spec.User == "carol" && q.Spec.ResourceAttributes != nil &&
			q.Spec.ResourceAttributes.Verb == "list"
		tell(w, q)
	})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	s.sign = func(name, group string) string {
		token, err := jwt.Signed(signer).Claims(map[string]any{
			"iss":   s.URL,
			"aud":   "keelson",
			"sub":   name,
			"roles": group,
			"exp":   time.Now().Add(time.Hour).Unix(),
			"iat":   time.Now().Unix(),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	return s
}

// write puts text into a file.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// with is a client with nothing but a token.
func with(access *rest.Config, token string) *kubernetes.Clientset {
	c := rest.AnonymousClientConfig(access)
	c.BearerToken = token
	return kubernetes.NewForConfigOrDie(c)
}

// TestConfiguredJudges runs a control plane whose issuers, strangers and authorizers are those of configuration files.
func TestConfiguredJudges(t *testing.T) {
	services := judgesOutside(t)
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["judge"] = &clientcmdapi.Cluster{
		Server:                   services.URL + "/judge",
		CertificateAuthorityData: []byte(services.ca),
	}
	kubeconfig.Contexts["c"] = &clientcmdapi.Context{Cluster: "judge"}
	kubeconfig.CurrentContext = "c"
	asked := filepath.Join(t.TempDir(), "judge.kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, asked); err != nil {
		t.Fatal(err)
	}
	access := controlPlaneOf(t, func(config *cluster.Config) {
		config.API.Authentication.ConfigFile = write(t, "authentication.yaml",
			fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}]}
jwt:
- issuer: {url: %q, audiences: [keelson], certificateAuthority: %q}
  claimMappings:
    username: {claim: sub, prefix: ""}
    groups: {expression: '["corp:" + claims.roles]'}
`, services.URL, services.ca))
		config.API.Authorization.ConfigFile = write(t, "authorization.yaml",
			fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: judge
  webhook:
    timeout: 10s
    authorizedTTL: 1m
    unauthorizedTTL: 1m
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: '!request.user.startsWith("system:")'
- {type: Node, name: node}
- {type: RBAC, name: rbac}
`, asked))
	})
	ctx := t.Context()
	carol := with(access, services.sign("carol", "dev"))
	bob := with(access, services.sign("bob", "dev"))
	mallory := with(access, services.sign("mallory", "dev"))
	me, err := carol.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "carol" || !slices.Equal(me.Status.UserInfo.Groups,
		[]string{"corp:dev", "system:authenticated"}) {
		t.Errorf("who carol is: %v %+v", err, me)
	}
	if _, err := carol.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("what the judge allows: %v", err)
	}
	if _, err := carol.CoreV1().Secrets("default").Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("what no authorizer allows: %v", err)
	}
	if _, err := bob.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("whom the judge does not know: %v", err)
	}
	if _, err := mallory.Discovery().ServerVersion(); !apierrors.IsForbidden(err) {
		t.Errorf("whom the judge denies, where RBAC allows: %v", err)
	}
	if v, err := bob.Discovery().ServerVersion(); err != nil || v.GitVersion == "" {
		t.Errorf("what RBAC allows: %v %v", v, err)
	}
	admin := kubernetes.NewForConfigOrDie(access)
	review, err := admin.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: services.sign("carol", "dev")}},
		metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "carol" {
		t.Errorf("review of a configured issuer's token: %v %+v", err, review)
	}
	rules, err := bob.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
	}, metav1.CreateOptions{})
	if err != nil || !rules.Status.Incomplete || !strings.Contains(rules.Status.EvaluationError,
		"webhook authorizer does not support") {
		t.Errorf("rules next to a webhook: %v %+v", err, rules)
	}
	stranger := with(access, "")
	if b, err := stranger.Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(ctx); err != nil || string(b) != "ok" {
		t.Errorf("the path that is open to strangers: %s %v", b, err)
	}
	if _, err := stranger.Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
		t.Errorf("a path that is not: %v", err)
	}
}

// TestNoStrangers: requests without a credential get no further than that.
func TestNoStrangers(t *testing.T) {
	access := controlPlaneOf(t, func(c *cluster.Config) {
		c.API.Authentication.NoAnonymous = true
		c.NoAgents = true
	})
	if b, err := with(access, "").Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(
		t.Context()); !apierrors.IsUnauthorized(err) {
		t.Errorf("a stranger's request: %s %v", b, err)
	}
	if _, err := kubernetes.NewForConfigOrDie(access).CoreV1().Namespaces().Get(t.Context(), "default",
		metav1.GetOptions{}); err != nil {
		t.Errorf("the administrator's: %v", err)
	}
}

// TestOptionsThatExcludeEachOther are refused before anything starts.
func TestOptionsThatExcludeEachOther(t *testing.T) {
	for _, c := range []struct {
		edit func(*options.Options)
		want string
	}{
		{func(o *options.Options) {
			a := &o.Authentication
			a.ConfigFile = "f"
			a.OIDC.IssuerURL = "https://x"
			a.OIDC.ClientID = "y"
		}, "--authentication-config and --oidc-* exclude each other"},
		{func(o *options.Options) {
			o.Authorization.ConfigFile = "f"
			o.Authorization.WebhookConfigFile = "g"
		}, "--authorization-config and --authorization-webhook-* exclude each other"},
	} {
		cfg := cluster.Default()
		cfg.DataDir = datadir.Dir(t.TempDir())
		c.edit(&cfg.API)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// TestIssuerDiscovery: who has a token can find out how to check others', and strangers cannot.
func TestIssuerDiscovery(t *testing.T) {
	access := controlPlaneOf(t, func(c *cluster.Config) { c.NoAgents = true })
	ctx := t.Context()
	admin := kubernetes.NewForConfigOrDie(access)
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "checker"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "checker",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string, into any) {
		t.Helper()
		b, err := with(access, made.Status.Token).Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	var doc struct {
		Issuer string   `json:"issuer"`
		Keys   string   `json:"jwks_uri"`
		Algs   []string `json:"id_token_signing_alg_values_supported"`
	}
	get("/.well-known/openid-configuration", &doc)
	var keys jose.JSONWebKeySet
	get(strings.TrimPrefix(doc.Keys, doc.Issuer), &keys)
	token, err := jwt.ParseSigned(made.Status.Token, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(doc.Algs[0])})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := token.Claims(keys, &claims); err != nil || claims.Issuer != doc.Issuer ||
		claims.Subject != "system:serviceaccount:default:checker" {
		t.Errorf("checked by the published keys: %v, %+v of issuer %s", err, claims, doc.Issuer)
	}
	if _, err := with(access, "").Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(
		ctx); !apierrors.IsForbidden(err) {
		t.Errorf("the keys for a stranger: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/options"
	"keelson/cluster"
	"keelson/lib/waittest"
)

// TestJudgesAreReadAgain: issuers and authorizers change with their files, without a restart.
func TestJudgesAreReadAgain(t *testing.T) {
	services := judgesOutside(t)
	issuers := func(prefix string) string {
		return fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"+
			"- issuer: {url: %q, audiences: [keelson], certificateAuthority: %q}\n  claimMappings: {username: "+
			"{claim: sub, prefix: %q}}\n", services.URL, services.ca, prefix)
	}
	const authorizers = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: " +
		"[{type: Node, name: node}, {type: RBAC, name: rbac}"
	var authentication, authorization string
	access := controlPlaneOf(t, func(c *cluster.Config) {
		c.NoAgents = true
		authentication = write(t, "authentication.yaml", issuers("a:"))
		authorization = write(t, "authorization.yaml", authorizers+"]\n")
		c.API.Authentication.ConfigFile = authentication
		c.API.Authorization.ConfigFile = authorization
	})
	ctx := t.Context()
	carol := with(access, services.sign("carol", "dev"))
	name := func() string {
		me, err := carol.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return me.Status.UserInfo.Username
	}
	list := func() error {
		_, err := carol.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	}
	if got := name(); got != "a:carol" {
		t.Errorf("at first she is %q", got)
	}
	if err := list(); !apierrors.IsForbidden(err) {
		t.Errorf("at first she may: %v", err)
	}
	for path, text := range map[string]string{
		authentication: issuers("b:"),
		authorization:  authorizers + ", {type: AlwaysAllow, name: alwaysallow}]\n",
	} {
		replace(t, path, []byte(text))
	}
	waittest.Right(t, "both files are read again", func() string {
		if got, err := name(), list(); got != "b:carol" || err != nil {
			return fmt.Sprintf("she is %q, and listing is answered with %v", got, err)
		}
		return ""
	})
	admin := kubernetes.NewForConfigOrDie(access)
	waittest.Right(t, "the reloads are counted", func() string {
		b, err := admin.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"authentication", "authorization"} {
			at := strings.Index(string(b), "\napiserver_"+what+"_config_controller_automatic_reloads_total{")
			line, _, _ := strings.Cut(string(b[max(at, 0)+1:]), "\n")
			if at < 0 || !strings.HasSuffix(line, `status="success"} 1`) {
				return what + " is not: " + line
			}
		}
		return ""
	})
}

// TestWrongFilesAreListed: who may ask reads which configuration is not in use, until its file is good again.
func TestWrongFilesAreListed(t *testing.T) {
	const good = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: " +
		"Node, name: node}, {type: RBAC, name: rbac}]\n"
	path := write(t, "authorization.yaml", good)
	access := controlPlaneOf(t, func(c *cluster.Config) {
		c.NoAgents = true
		c.API.Authorization.ConfigFile = path
	})
	ask := func(c kubernetes.Interface) string {
		b, err := c.Discovery().RESTClient().Get().AbsPath("/keelson/v1/configuration").DoRaw(t.Context())
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(b))
	}
	admin := kubernetes.NewForConfigOrDie(access)
	if got := ask(admin); got != "[]" {
		t.Errorf("at first: %s", got)
	}
	replace(t, path, []byte("kind: Nonsense\n"))
	waittest.Right(t, "the wrong file is listed", func() string {
		got := ask(admin)
		if strings.HasPrefix(got, `[{"name":"authorization","file":"`+path+`","error":"`) {
			return ""
		}
		return got
	})
	if b, err := with(access, "").Discovery().RESTClient().Get().AbsPath("/keelson/v1/configuration").DoRaw(
		t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("an anonymous user got %s, %v", b, err)
	}
	replace(t, path, []byte(good))
	waittest.Right(t, "the good file clears the list", func() string {
		if got := ask(admin); got != "[]" {
			return got
		}
		return ""
	})
}

// TestOwnTokensAndKeys: tokens are from and for whom the options say, by the key they name, and a file's tokens are
// trusted.
func TestOwnTokensAndKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	access := controlPlaneOf(t, func(c *cluster.Config) {
		c.NoAgents = true
		c.API.Authentication.TokenFile = write(t, "tokens.csv", "tok,jane,u1,\"system:masters\"\n")
		c.API.Authorization.Modes = []string{"RBAC"}
		c.API.Tokens = options.ServiceAccountTokens{
			Issuers:       []string{"https://new.example", "https://old.example"},
			Audiences:     []string{"api"},
			MaxExpiration: 2 * time.Hour,
			SigningKeyFile: write(t, "sa.key",
				string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))),
			JWKSURI: "https://keys.example/jwks",
		}
	})
	ctx := t.Context()
	jane := with(access, "tok")
	if _, err := jane.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "build"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := jane.CoreV1().ServiceAccounts("default").CreateToken(ctx, "build", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(10_000))},
	}, metav1.CreateOptions{})
	if err != nil || *made.Spec.ExpirationSeconds != 7200 || len(made.Spec.Audiences) != 1 ||
		made.Spec.Audiences[0] != "api" {
		t.Fatalf("token: %v, %+v", err, made)
	}
	build := with(access, made.Status.Token)
	me, err := build.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "system:serviceaccount:default:build" {
		t.Errorf("who has the token: %v %+v", err, me)
	}
	b, err := build.Discovery().RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	for _, want := range []string{
		`"issuer":"https://new.example"`, `"jwks_uri":"https://keys.example/jwks"`, `["ES384"]`,
	} {
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("the issuer's description: %v, %s has no %s", err, b, want)
		}
	}
	review, err := jane.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "tok"}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "jane" {
		t.Errorf("review of a listed token: %v %+v", err, review)
	}
}

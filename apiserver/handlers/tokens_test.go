// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// TestBoundTokens: a token bound to a pod, a secret or a node says so, and ends with it; another object of the same
// name does not bring it back.
func TestBoundTokens(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	ctx := t.Context()
	clientset := running.Clients(t)
	core := clientset.CoreV1()
	if _, err := core.ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "build"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	make1 := map[string]func() metav1.Object{
		"Pod": func() metav1.Object {
			p := servertest.Pod("runner")
			p.Spec.ServiceAccountName = "build"
			p.Spec.NodeName = "n1"
			p, err := core.Pods("default").Create(ctx, p, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return p
		},
		"Secret": func() metav1.Object {
			s, err := core.Secrets("default").Create(ctx,
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "runner"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"Node": func() metav1.Object {
			n, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "runner"}},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	remove := map[string]func() error{
		"Pod":    func() error { return core.Pods("default").Delete(ctx, "runner", now) },
		"Secret": func() error { return core.Secrets("default").Delete(ctx, "runner", now) },
		"Node":   func() error { return core.Nodes().Delete(ctx, "runner", now) },
	}
	review := func(token string) authenticationv1.TokenReviewStatus {
		t.Helper()
		got, err := clientset.AuthenticationV1().TokenReviews().Create(ctx,
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Status
	}
	const prefix = "authentication.kubernetes.io/"
	for kind, create := range make1 {
		obj := create()
		got, err := core.ServiceAccounts("default").CreateToken(ctx,
			"build", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: kind, APIVersion: "v1", Name: "runner"},
			}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("token for a %s: %v", kind, err)
		}
		token := got.Status.Token
		want := map[string]string{}
		switch kind {
		case "Pod":
			want = map[string]string{
				"pod-name":  "runner",
				"pod-uid":   string(obj.GetUID()),
				"node-name": "n1",
				"node-uid":  string(node.UID),
			}
		case "Node":
			want = map[string]string{"node-name": "runner", "node-uid": string(obj.GetUID())}
		}
		status := review(token)
		if !status.Authenticated || status.User.Username != "system:serviceaccount:default:build" ||
			!slices.Equal(status.Audiences, []string{servertest.Issuer}) {
			t.Errorf("%s: %+v", kind, status)
		}
		for key, value := range want {
			if !slices.Equal(status.User.Extra[prefix+key], authenticationv1.ExtraValue{value}) {
				t.Errorf("%s: %s is %q, want %q", kind, key, status.User.Extra[prefix+key], value)
			}
		}
		if id := status.User.Extra[prefix+"credential-id"]; len(id) != 1 || len(id[0]) != len("JTI=")+36 ||
			len(status.User.Extra) != len(want)+1 {
			t.Errorf("%s: extra fields %v", kind, status.User.Extra)
		}
		if err := remove[kind](); err != nil {
			t.Fatal(err)
		}
		waittest.Until(t, "the token ends with its "+kind, func() bool { return !review(token).Authenticated })
		create()
		if review(token).Authenticated {
			t.Errorf("another %s of the same name brought the token back", kind)
		}
		_, err = kubernetes.NewForConfigOrDie(running.WithToken(token)).AuthenticationV1().SelfSubjectReviews().Create(
			ctx,
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("request with a token whose %s is gone: %v", kind, err)
		}
	}
	// A pod of another account lends nothing.
	p := servertest.Pod("other")
	p.Spec.ServiceAccountName = "else"
	if _, err := core.Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = core.ServiceAccounts("default").CreateToken(ctx,
		"build", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "other"},
		}}, metav1.CreateOptions{})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("token bound to another account's pod: %v", err)
	}
}

// TestTokenRequestsRefused: what is wrong about a request for a token, as Kubernetes v1.37 says it.
func TestTokenRequestsRefused(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	ctx := t.Context()
	core := running.Clients(t).CoreV1()
	if _, err := core.ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "build"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/default/serviceaccounts/build/token"
	for _, c := range []struct {
		what, body string
		code       int
		want       string
	}{
		{
			"another name", `"metadata":{"name":"other"}`, 422,
			`TokenRequest.authentication.k8s.io \"build\" is invalid: metadata.name: Invalid value: \"other\": must match the service account name if specified`,
		},
		{
			"another namespace", `"metadata":{"namespace":"other"}`, 422,
			`metadata.namespace: Invalid value: \"other\": must match the service account namespace if specified`,
		},
		{
			"another account's uid", `"metadata":{"uid":"other"}`, 409,
			"the UID in the token request (other) does not match the UID of the service account",
		},
		{"too short", `"spec":{"expirationSeconds":599}`, 422, "may not specify a duration less than 10 minutes"},
		{
			"bound to a kind that cannot be",
			`"spec":{"boundObjectRef":{"kind":"ConfigMap","apiVersion":"v1","name":"s"}}`, 400,
			"cannot bind token to object of type /v1, Kind=ConfigMap",
		},
		{
			"bound to a webhook",
			`"spec":{"boundObjectRef":{"kind":"MutatingWebhookConfiguration","apiVersion":"admissionregistration.k8s.io/v1","name":"s"}}`,
			400, "(feature gate APIServerWebhookAuthenticationToken is disabled)",
		},
		{
			"bound to another secret",
			`"spec":{"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"s","uid":"other"}}`, 409,
			`Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference (other) does not match the UID in record`,
		},
	} {
		got := running.Call(t, "POST", path, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest",`+c.body+
			`}`)
		if got.Code != c.code || !strings.Contains(string(got.Body), c.want) {
			t.Errorf("%s: got %d %s, want %d %s", c.what, got.Code, servertest.Short(got.Body), c.code, c.want)
		}
	}
	made, err := core.ServiceAccounts("default").CreateToken(ctx, "build", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil || made.Name != "build" || made.Namespace != "default" || made.UID == "" ||
		*made.Spec.ExpirationSeconds != 3600 {
		t.Errorf("what is filled in: %v %+v", err, made)
	}
}

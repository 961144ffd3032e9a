// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client/clienttest"
)

// roundTripper is a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAccountTokens: the account is made where it is missing, one token serves until most of its life is over, a server
// that does not answer then costs nothing before the old one ends, and a token that is refused is used no more.
func TestAccountTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := clienttest.New()
		asked := 0
		down := false
		api.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "token" {
				return false, nil, nil
			}
			if down {
				return true, nil, errors.New("connection refused")
			}
			if _, err := api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("serviceaccounts"), "kube-system",
				"job-controller"); apierrors.IsNotFound(err) {
				return true, nil, err
			}
			asked++
			return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
				Token:               strings.Repeat("t", asked),
				ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
			}}, nil
		})
		var shown string
		code := http.StatusOK
		transport := newAccountTransport("kube-system", "job-controller",
			roundTripper(func(r *http.Request) (*http.Response, error) {
				shown = r.Header.Get("Authorization")
				return &http.Response{StatusCode: code, Body: http.NoBody}, nil
			}), accountTokens{api, "kube-system", "job-controller"}.request)
		want := func(what, token string) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			shown = ""
			resp, err := transport.RoundTrip(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			if (err == nil) != (token != "") || token != "" && shown != "Bearer "+token {
				t.Errorf("%s: shown %q, %v, want %q", what, shown, err, token)
			}
			if r.Header.Get("Authorization") != "" {
				t.Errorf("%s: the caller's request was changed", what)
			}
		}
		want("the first", "t")
		time.Sleep(47 * time.Minute)
		want("after 47 minutes", "t")
		down = true
		time.Sleep(2 * time.Minute)
		want("the server is gone", "t")
		time.Sleep(12 * time.Minute)
		want("the server is gone for an hour", "")
		down = false
		want("it is back", "tt")
		code = http.StatusUnauthorized
		want("it has other keys", "tt")
		code = http.StatusOK
		want("another token", "ttt")
	})
}

// TestAccountTokensByAnotherClock: a server whose clock is hours off is not asked for a token before each request, and
// its tokens are not used for longer than they live.
func TestAccountTokensByAnotherClock(t *testing.T) {
	for _, off := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			transport := newAccountTransport("kube-system", "keelson-proxy",
				roundTripper(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
				}), func(context.Context) (*authenticationv1.TokenRequestStatus, error) {
					asked++
					return &authenticationv1.TokenRequestStatus{
						Token:               "t",
						ExpirationTimestamp: metav1.NewTime(time.Now().Add(off + accountTokenLife)),
					}, nil
				})
			for _, step := range []struct {
				after time.Duration
				want  int
			}{{0, 1}, {47 * time.Minute, 1}, {2 * time.Minute, 2}} {
				time.Sleep(step.after)
				if _, err := transport.currentToken(t.Context()); err != nil || asked != step.want {
					t.Errorf("a server %s ahead: asked %d times, %v, want %d", off, asked, err, step.want)
				}
			}
		})
	}
}

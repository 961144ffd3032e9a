// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
)

// TestNodeAccounts: a role works as its account, and as the node where the server gives no token, until it gives one;
// a server that refuses both is logged.
func TestNodeAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := clienttest.New(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u"}})
		gives := true
		asked := 0
		api.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			create, _ := a.(clienttesting.CreateAction)
			tr, _ := create.GetObject().(*authenticationv1.TokenRequest)
			if ref := tr.Spec.BoundObjectRef; ref == nil || ref.Kind != "Node" || ref.Name != "one" || ref.UID != "u" {
				t.Errorf("bound to %+v", ref)
			}
			if !gives {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts/token"},
					"keelson-dns", errors.New("no relationship found"))
			}
			return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
				Token:               "t",
				ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
			}}, nil
		})
		var log bytes.Buffer
		who := ""
		code := http.StatusOK
		n := NodeAccounts{Node: &client.Client{Interface: client.Plain(api)}, Name: "one"}
		transport := &nodeAccountTransport{
			account: newAccountTransport("kube-system", "keelson-dns",
				roundTripper(func(r *http.Request) (*http.Response, error) {
					who = r.Header.Get("Authorization")
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
				}), func(ctx context.Context) (*authenticationv1.TokenRequestStatus, error) {
					return n.token(ctx, "keelson-dns")
				}),
			asNode: roundTripper(func(r *http.Request) (*http.Response, error) {
				who = "node"
				return &http.Response{StatusCode: code, Body: http.NoBody}, nil
			}),
			node: "one",
			log:  slog.New(slog.NewTextHandler(&log, nil)),
		}
		want := func(what, as string, tokens int) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			who = ""
			resp, err := transport.RoundTrip(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			if who != as || asked != tokens {
				t.Errorf("%s: as %q after %d requests of tokens, %v, want %q after %d", what, who, asked, err, as,
					tokens)
			}
		}
		gives = false
		want("a server that gives none", "node", 1)
		want("it is not asked at once", "node", 1)
		if log.Len() > 0 {
			t.Errorf("nothing was refused: %s", &log)
		}
		code = http.StatusForbidden
		want("it refuses the node, too", "node", 1)
		want("again", "node", 1)
		if n := strings.Count(log.String(), "keelson node rbac one"); n != 1 {
			t.Errorf("logged %d times: %s", n, &log)
		}
		time.Sleep(tokenRetry)
		gives = true
		want("a newer server", "Bearer t", 2)
		time.Sleep(47 * time.Minute)
		want("the same token", "Bearer t", 2)
		if err := api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "one"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Minute)
		want("the node is gone: not as the node either", "", 2)
	})
}

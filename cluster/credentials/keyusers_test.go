// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/pki"
)

// TestKubeletsReady: a kubelet is named if it serves with a certificate of the old key, or answers none of the servers.
func TestKubeletsReady(t *testing.T) {
	for name, tt := range map[string]struct {
		servers []map[string]string
		want    string
	}{
		"no nodes":      {servers: []map[string]string{nil}},
		"all follow":    {servers: []map[string]string{{"a": "new", "b": "new"}}},
		"late":          {servers: []map[string]string{{"a": "new", "b": "old", "c": "old"}}, want: "b, c serve with"},
		"silent":        {servers: []map[string]string{{"a": "new", "b": ""}}, want: "kubelets of b do not answer"},
		"one reaches":   {servers: []map[string]string{{"a": "new"}, {"a": ""}}},
		"other reaches": {servers: []map[string]string{{"a": ""}, {"a": "new"}}},
		"none reaches":  {servers: []map[string]string{{"a": ""}, {"a": ""}}, want: "a do not answer"},
		"late at one":   {servers: []map[string]string{{"a": ""}, {"a": "old"}}, want: "a serve with"},
	} {
		var found []keyUsers
		for _, k := range tt.servers {
			found = append(found, keyUsers{Kubelets: k})
		}
		err := kubeletsReady(found, "new")
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestLately: who used something within the time, at any server.
func TestLately(t *testing.T) {
	now := time.Now()
	got := lately([]keyUsers{
		{Users: map[string]time.Time{"b": now.Add(-time.Hour), "c": now}},
		{Users: map[string]time.Time{"a": now, "c": now.Add(-time.Hour)}},
	}, func(u keyUsers) map[string]time.Time { return u.Users }, time.Minute)
	if fmt.Sprint(got) != "[a c]" {
		t.Errorf("got %v, want a and c", got)
	}
}

// TestNoticed: a server that has just started does not know who uses a key.
func TestNoticed(t *testing.T) {
	long := keyUsers{Began: time.Now().Add(-time.Hour)}
	if err := noticed([]keyUsers{long, long}, time.Minute); err != nil {
		t.Error(err)
	}
	if err := noticed([]keyUsers{long, {Began: time.Now()}}, time.Minute); err == nil {
		t.Error("a server of no age has noticed all")
	}
}

// TestBundlesReady: objects are named by whose caBundle only the old key is trusted; one with both keys, or of another
// authority, is none.
func TestBundlesReady(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.Open(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func(dir, name string) error{pki.Trust, pki.Use} {
		if err := step(dir, "ca"); err != nil {
			t.Fatal(err)
		}
	}
	both, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open(t.TempDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	old, err := pki.OtherAuthorities(dir, "ca")
	if err != nil || len(old) != 1 {
		t.Fatalf("old authorities: %d, %v", len(old), err)
	}
	oldPEM := strings.TrimPrefix(string(both.CertPEM()), string(newest(t, both)))
	hook := `{"metadata":{"name":%q},"webhooks":[{},{"clientConfig":{"caBundle":%q}}]}`
	api := `{"metadata":{"name":%q},"spec":{"caBundle":%q}}`
	crd := `{"metadata":{"name":%q},"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":%q}}}}}`
	shape := map[string]string{
		"validatingwebhookconfigurations": hook,
		"mutatingwebhookconfigurations":   hook,
		"apiservices":                     api,
		"customresourcedefinitions":       crd,
	}
	for _, tt := range []struct {
		name, bundle string
		late         bool
	}{
		{"old", oldPEM, true},
		{"both", string(both.CertPEM()), false},
		{"foreign", string(other.CertPEM()), false},
		{"none", "", false},
		{"broken", "broken", false},
	} {
		for resource, path := range bundleHolders {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				item := ""
				if r.URL.Path == path {
					item = fmt.Sprintf(shape[resource], tt.name, base64.StdEncoding.EncodeToString([]byte(tt.bundle)))
				}
				_, _ = io.WriteString(w, `{"items":[`+item+`]}`)
			}))
			err := bundlesReady(t.Context(), kubernetes.NewForConfigOrDie(&rest.Config{Host: srv.URL}), old)
			srv.Close()
			if (err != nil) != tt.late || err != nil && !strings.Contains(err.Error(), resource+"/"+tt.name+" is") {
				t.Errorf("%s of %s: %v, want it named: %v", tt.name, resource, err, tt.late)
			}
		}
	}
}

// newest is the first certificate of an authority, that of the key which signs.
func newest(t *testing.T, a *pki.Authority) []byte {
	t.Helper()
	first, rest, ok := strings.Cut(string(a.CertPEM()), "-----END CERTIFICATE-----\n")
	if !ok || rest == "" {
		t.Fatal("there are no two certificates")
	}
	return []byte(first + "-----END CERTIFICATE-----\n")
}

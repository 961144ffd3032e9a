// SPDX-License-Identifier: Apache-2.0

package sharedsettings

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keelson/apiserver/options"
	"keelson/store"
	"keelson/store/embed"
)

// testServer is a server on a store that others may use.
func testServer(othersRun bool) Server {
	return Server{
		API:     &options.Options{},
		Running: func(context.Context) (bool, error) { return othersRun, nil },
		Log:     slog.New(slog.DiscardHandler),
	}
}

// TestServersShareSettings: of servers on one store the first decides the range of Services, and the domain while it
// runs.
func TestServersShareSettings(t *testing.T) {
	st, err := embed.Open(embed.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	for _, c := range []struct {
		what, services, domain string // no domain: a server without a node
		fresh, running         bool
		want                   string // the refusal; empty: none
		before, after          string // the record; empty: as it is
	}{
		{
			what:     "first, without a node",
			services: "10.43.0.0/16",
			after:    "service-cluster-ip-range 10.43.0.0/16\n",
		},
		{
			what:     "first with a node",
			services: "10.43.0.0/16",
			domain:   "a.test",
			running:  true,
			after:    "cluster-domain a.test\nservice-cluster-ip-range 10.43.0.0/16\n",
		},
		{
			what:     "a record with a setting of a later version",
			services: "10.43.0.0/16",
			domain:   "a.test",
			before:   "later 1\n",
			after:    "cluster-domain a.test\nlater 1\nservice-cluster-ip-range 10.43.0.0/16\n",
		},
		{
			what:     "another range, new",
			services: "10.50.0.0/16",
			domain:   "a.test",
			fresh:    true,
			want:     "those of this server 10.50.0.0/16: start with --service-cluster-ip-range=10.43.0.0/16",
		},
		{
			what:     "another range, not new",
			services: "10.50.0.0/16",
			want:     "/dir/service-cidr and start with",
		},
		{
			what:     "a second range",
			services: "10.43.0.0/16,fd00::/108",
			want:     "the Services of this cluster have 10.43.0.0/16",
		},
		{
			what:     "another domain, others run",
			services: "10.43.0.0/16",
			domain:   "b.test",
			running:  true,
			want:     "have the domain a.test, this one b.test: start with --cluster-domain=a.test",
		},
		{
			what:     "another range without a node, others run",
			services: "10.43.0.0/16",
			running:  true,
		},
		{
			what:     "another domain, alone",
			services: "10.43.0.0/16",
			domain:   "b.test",
			after:    "cluster-domain b.test\nlater 1\nservice-cluster-ip-range 10.43.0.0/16\n",
		},
	} {
		before, _, _ := st.Get(t.Context(), settingsKey, 0)
		if c.before != "" {
			if _, err := st.Update(t.Context(), settingsKey, []byte(c.before), before.Revision); err != nil {
				t.Fatal(err)
			}
		}
		server := testServer(c.running)
		server.Domain = c.domain
		if !c.fresh {
			server.RangeFile = "/dir/service-cidr"
		}
		for text := range strings.SplitSeq(c.services, ",") {
			server.Services = append(server.Services, netip.MustParsePrefix(text))
		}
		err := server.Keep(t.Context(), st)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.want != "" {
			refused(t, c.what, err, c.want)
		}
		if c.after == "" {
			c.after = string(before.Value)
		}
		now, _, _ := st.Get(t.Context(), settingsKey, 0)
		if got := rangesAndDomains(now.Value); got != rangesAndDomains([]byte(c.after)) {
			t.Errorf("%s: the store has %q, want %q", c.what, got, c.after)
		}
	}
	full := fullStore{away: &store.UnavailableError{Cause: errors.New("no space left on device"), Full: true}}
	if err := testServer(false).Keep(t.Context(), full); err != nil {
		t.Errorf("a full disk: %v", err)
	}
}

// fullStore holds nothing and takes no writes.
type fullStore struct {
	store.Store
	away error
}

func (f fullStore) Get(context.Context, string, int64) (store.KV, int64, error) {
	return store.KV{}, 1, store.ErrNotFound
}

func (f fullStore) Create(context.Context, string, []byte) (store.Written, error) {
	return store.Written{}, f.away
}

func refused(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want a refusal with %q", what, err, want)
	}
}

// rangesAndDomains are the lines of a record without those of other settings.
func rangesAndDomains(record []byte) string {
	var out strings.Builder
	for line := range strings.Lines(string(record)) {
		flag, _, _ := strings.Cut(line, " ")
		if flag == serviceRangeFlag || flag == domainFlag || flag == "later" {
			out.WriteString(line)
		}
	}
	return out.String()
}

// secretsWith is an EncryptionConfiguration of Secrets with keys, the first of which encrypts.
func secretsWith(t *testing.T, keys ...string) string {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
		"- resources: [secrets]\n  providers:\n  - secretbox:\n      keys:\n"
	for _, key := range keys {
		secret := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(key, 32)))
		text += "      - {name: " + key + ", secret: " + secret + "}\n"
	}
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(path, []byte(text+"  - identity: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestServersReadEachOther: a server does not start next to others where one of them could not read what the other
// encrypts; alone it may have any keys.
func TestServersReadEachOther(t *testing.T) {
	st, err := embed.Open(embed.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	start := func(running bool, keys ...string) error {
		server := testServer(running)
		if len(keys) > 0 {
			server.API.Encryption.ConfigFile = secretsWith(t, keys...)
		}
		return server.Keep(t.Context(), st)
	}
	for _, step := range []struct {
		running bool
		keys    []string
		want    string
	}{
		{false, nil, ""},
		{true, []string{"a"}, "encrypts with a key that the others cannot read with: first add it"},
		{false, []string{"a"}, ""},
		{true, []string{"a", "b"}, ""}, // a new key is read first
		{true, []string{"b", "a"}, ""}, // and then written
		{true, nil, "the other servers of this cluster encrypt with a key that this one does not have"},
		{true, []string{"a"}, "the other servers of this cluster encrypt with a key"},
		{true, []string{"b"}, ""},
		{false, []string{"c"}, ""}, // alone
	} {
		err := start(step.running, step.keys...)
		if step.want == "" && err != nil {
			t.Errorf("keys %v: %v", step.keys, err)
		}
		if step.want != "" {
			refused(t, strings.Join(step.keys, ","), err, step.want)
		}
	}
}

// TestUnlikeServersAreWarned: issuers, gates and admission plugins that differ from those of the server that was
// started last are named in the log; a server alone has none.
func TestUnlikeServersAreWarned(t *testing.T) {
	st, err := embed.Open(embed.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	start := func(etcd bool, change func(*Server)) string {
		var log bytes.Buffer
		server := testServer(false)
		server.Log = slog.New(slog.NewTextHandler(&log, nil))
		if !etcd {
			server.Running = nil
		}
		if change != nil {
			change(&server)
		}
		if err := server.Keep(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	start(true, nil)
	got := start(true, func(c *Server) {
		c.API.Tokens.Issuers = []string{"https://a.test"}
		c.Gates.GenericWorkload = true
		c.API.Admission.Disable = []string{"LimitRanger"}
	})
	for _, want := range []string{
		"flag=--service-account-issuer here=https://a.test there=https://kubernetes.default.svc.cluster.local",
		"flag=--feature-gates here=", "GenericWorkload=true", "flag=--disable-admission-plugins here=LimitRanger there=-",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := start(false, nil); got != "" {
		t.Errorf("a server alone: got %q, want nothing", got)
	}
}

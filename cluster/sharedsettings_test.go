// SPDX-License-Identifier: Apache-2.0

package cluster

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

	"keelson/store"
	"keelson/store/embed"
)

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
		cluster := &Cluster{dir: "/dir", fresh: c.fresh, log: slog.New(slog.DiscardHandler)}
		cluster.cfg.NoNode = c.domain == ""
		cluster.cfg.Node.ClusterDomain = c.domain
		for text := range strings.SplitSeq(c.services, ",") {
			cluster.cfg.keptServices = append(cluster.cfg.keptServices, netip.MustParsePrefix(text))
		}
		err := cluster.keepSettings(t.Context(), st, func(context.Context) (bool, error) { return c.running, nil })
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
	cluster := &Cluster{log: slog.New(slog.DiscardHandler)}
	if err := cluster.keepSettings(t.Context(), full, nil); err != nil {
		t.Errorf("a full disk: %v", err)
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
		cluster := &Cluster{log: slog.New(slog.DiscardHandler)}
		cluster.cfg.NoNode = true
		if len(keys) > 0 {
			cluster.cfg.API.Encryption.ConfigFile = secretsWith(t, keys...)
		}
		return cluster.keepSettings(t.Context(), st, func(context.Context) (bool, error) { return running, nil })
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
	start := func(etcd bool, change func(*Config)) string {
		var log bytes.Buffer
		cluster := &Cluster{log: slog.New(slog.NewTextHandler(&log, nil))}
		cluster.cfg.NoNode = true
		if etcd {
			cluster.cfg.Etcd.Servers = []string{"http://etcd:2379"}
		}
		if change != nil {
			change(&cluster.cfg)
		}
		if err := cluster.keepSettings(t.Context(), st, nil); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	start(true, nil)
	got := start(true, func(c *Config) {
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

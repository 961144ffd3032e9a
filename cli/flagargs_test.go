// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"keelson/cluster"
	"keelson/cluster/flags"
)

// TestAbsoluteFiles: a cluster that leaves the directory it was started in still finds the files that were named from
// there.
func TestAbsoluteFiles(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	fl := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.Add(fl, (&cluster.Options{}).Rows())
	if err := fl.Parse([]string{
		"--encryption-provider-config=enc.yaml", "--audit-log-path=-", "--client-ca-file=/etc/ca.pem",
		"--service-account-key-file=a.pub",
		"--service-account-key-file=keys/b.pub", "--tls-sni-cert-key=c.pem,c.key:a.example,b.example",
		"--oidc-username-claim=sub", "--tls-curve-preferences=4588,29",
	}); err != nil {
		t.Fatal(err)
	}
	if err := absoluteFiles(fl); err != nil {
		t.Fatal(err)
	}
	got := roleArgs(fl)
	slices.Sort(got)
	if want := []string{
		"--audit-log-path=-", "--client-ca-file=/etc/ca.pem", "--encryption-provider-config=" + filepath.Join(here,
			"enc.yaml"),
		"--oidc-username-claim=sub", "--service-account-key-file=" + filepath.Join(here, "a.pub"),
		"--service-account-key-file=" + filepath.Join(here, "keys/b.pub"),
		"--tls-curve-preferences=29", "--tls-curve-preferences=4588",
		"--tls-sni-cert-key=" + filepath.Join(here, "c.pem") + "," + filepath.Join(here, "c.key") +
			":a.example,b.example",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestDataLossFlagReachesTheChild: `up --detach` passes the flag to its process in the background.
func TestDataLossFlagReachesTheChild(t *testing.T) {
	for _, accept := range []bool{true, false} {
		f := upFlags{acceptDataLoss: accept}
		if got := slices.Contains(f.childArgs(), "--accept-data-loss"); got != accept {
			t.Errorf("accept %t: the child gets %t", accept, got)
		}
	}
}

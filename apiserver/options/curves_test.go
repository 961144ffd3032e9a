// SPDX-License-Identifier: Apache-2.0

package options

import (
	"crypto/tls"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"keelson/cluster/flags"
)

// TestCurves: the server takes the key exchanges that the flag names, and no number that TLS does not know.
func TestCurves(t *testing.T) {
	var opts Serving
	fl := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.Add(fl, opts.rows())
	if err := fl.Parse([]string{"--tls-curve-preferences=4588,29"}); err != nil {
		t.Fatal(err)
	}
	served, err := NewCertificates(func() *tls.Certificate { return nil }, opts)
	if err != nil {
		t.Fatal(err)
	}
	want := []tls.CurveID{tls.X25519MLKEM768, tls.X25519}
	if got := served.TLS().CurvePreferences; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, id := range []int32{0, -1, 65536, 65535} {
		opts.Curves = []int32{id}
		if err := opts.validate(); err == nil {
			t.Errorf("%d: want it refused", id)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"keelson/cluster/datadir"
	"keelson/controllers/nodeipam"
)

// TestPodRangesBesideServices: a node's pods get no addresses of Services', and a service range that is changed onto
// theirs is refused.
func TestPodRangesBesideServices(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	choose := func(dir datadir.Dir, cluster, services []netip.Prefix) (string, error) {
		out, claim, err := ChoosePodCIDRs(nil, dir, nodeipam.Config{Cluster: cluster, Reserved: services})
		if err != nil {
			return "", err
		}
		defer func() { _ = claim.Close() }()
		return fmt.Sprint(out), nil
	}
	dir := datadir.Dir(t.TempDir())
	chosen, err := choose(dir, prefixes("10.213.0.0/23"), prefixes("10.213.0.0/24"))
	if err != nil || chosen != "[10.213.1.0/24]" {
		t.Errorf("next to the services: got %s, %v", chosen, err)
	}
	if again, err := choose(dir, prefixes("10.214.0.0/16"), prefixes("10.96.0.0/16")); err != nil || again != chosen {
		t.Errorf("after --cluster-cidr changed: got %s, %v", again, err)
	}
	_, err = choose(dir, nil, prefixes("10.213.0.0/16"))
	want := "the pods of this node have 10.213.1.0/24 (" + dir.Sub(datadir.PodCIDRFile) + "), and Services have " +
		"10.213.0.0/16: choose another --service-cluster-ip-range"
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	_, err = choose(datadir.Dir(t.TempDir()), prefixes("10.213.0.0/23"), prefixes("10.213.0.0/16"))
	if err == nil ||
		!strings.HasSuffix(err.Error(), "every /24 of 10.213.0.0/23 is in use on this machine, or by Services") {
		t.Errorf("no room: got %v", err)
	}
	if got := fmt.Sprint(OutsideOf(prefixes("10.213.1.0/24", "fd00::/64"),
		prefixes("10.213.0.0/16", "fd01::/48"))); got != "[fd00::/64]" {
		t.Errorf("outside: %s", got)
	}
}

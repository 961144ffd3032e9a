// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"keelson/cluster/datadir"
)

// podLinkPrefix begins the name of the link of a cluster's pods; the ID of the data directory follows.
const podLinkPrefix = "kl-"

// link is a network link with its addresses.
type link struct {
	name  string
	addrs []net.Addr
}

// podLinks are the links of pods in this network namespace.
func podLinks() ([]link, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network links: %w", err)
	}
	var out []link
	for _, i := range all {
		if !strings.HasPrefix(i.Name, podLinkPrefix) {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it was just deleted
		}
		out = append(out, link{name: i.Name, addrs: addrs})
	}
	return out, nil
}

// checkPodRange returns an error if another cluster has pods with the addresses of ranges in this network namespace:
// the kernel would send packets to either. directories are the data directories in use.
func checkPodRange(ranges []netip.Prefix, id string, links []link, directories func() []datadir.Dir) error {
	for _, r := range ranges {
		for _, l := range links {
			if l.name == podLinkPrefix+id || !overlaps(r, l.addrs) {
				continue
			}
			dirs := directories()
			at := slices.IndexFunc(dirs, func(d datadir.Dir) bool { return podLinkPrefix+d.ID() == l.name })
			if at >= 0 {
				return fmt.Errorf("pod range %s is in use by the cluster in %s (link %s): stop it with `keelson down "+
					"--data-dir %s`", r, dirs[at], l.name, dirs[at])
			}
			return fmt.Errorf("pod range %s is in use by a stopped cluster (link %s): `keelson down` with its data "+
				"directory, or `ip link delete %s`", r, l.name, l.name)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"

	"keelson/cluster/nodehost"
)

// ServicesKept is a notice that Services keep other CIDRs than the flag asks for; empty: they do not.
func (c *Cluster) ServicesKept() string {
	asked, _ := c.cfg.Services.Ranges() // checked by Validate
	if slices.Equal(asked, c.cfg.keptServices) {
		return ""
	}
	return fmt.Sprintf("Services keep %s of the first start, in place of %s: to move them, add a ServiceCIDR with "+
		"the new range",
		strings.Join(nodehost.PrefixStrings(c.cfg.keptServices), ","), strings.Join(nodehost.PrefixStrings(asked), ","))
}

// DiskFull warns that this start uses the reserve; empty: it does not.
func (c *Cluster) DiskFull() string {
	if !c.reserveUsed {
		return ""
	}
	return fmt.Sprintf("the disk of %s is full, and new objects are refused: delete files or objects", c.dir)
}

// SharedServices is a warning that another cluster on this machine uses the same service CIDRs; empty: none does.
func (c *Cluster) SharedServices() string {
	if c.cfg.Rootless || c.cfg.NoNode {
		return ""
	}
	return nodehost.SharedServices(c.dir, c.cfg.keptServices)
}

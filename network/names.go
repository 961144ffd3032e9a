// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// names are the kernel's names of what one network makes. They derive from its id, so that several clusters share a
// machine, and that another process finds what an earlier one has made.
type names struct {
	id         string
	bridge     string // the link with the gateways' addresses
	table      string // of nftables, one of each family
	group      uint32 // of the bridge and the pods' links
	linkPrefix string // of the host's ends of the pods' links, for firewall rules by name
}

func namesOf(id string) names {
	sum := sha256.Sum256([]byte(id))
	return names{
		id:         id,
		bridge:     "kl-" + id,
		table:      "keelson-" + id,
		group:      GroupOf(id),
		linkPrefix: "kv" + hex.EncodeToString(sum[:2]) + "-",
	}
}

// GroupOf returns the group of all links of the pods of the network with the ID.
func GroupOf(id string) uint32 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint32(sum[:]) | 1<<16 // above the groups that administrators use
}

// link returns the name of the host's end of a pod's link, unique to cluster and pod in the kernel's 15 characters.
func (n names) link(pod string) string {
	sum := sha256.Sum256([]byte(n.id + "/" + pod))
	return n.linkPrefix + hex.EncodeToString(sum[:4])
}

// bridgedLink returns the link's name in versions that attached it to the bridge.
func (n names) bridgedLink(pod string) string {
	sum := sha256.Sum256([]byte(n.id + "/" + pod))
	return "kv-" + hex.EncodeToString(sum[:6])
}

// mark is the comment by which the network finds its rules in chains of others.
func (n names) mark() []byte {
	return append([]byte{0, byte(len(n.table) + 1)}, append([]byte(n.table), 0)...)
}

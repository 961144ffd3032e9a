// SPDX-License-Identifier: Apache-2.0

// Package network speaks the kernel's words for a node's pod network: a veth pair and
// a route per pod, addresses, and an nftables table per IP family for masquerading and
// host ports. cluster hands it to the runtime, which attaches sandboxes. It knows no
// Kubernetes objects and runs no other program.
//
//	pod netns            host
//	+------------+      +-----------------------------------------------+
//	| lo  eth0 --+------+-- kvHASH-ID   route to the pod's address      |
//	+------------+      |   kl-ID       bridge: the gateway's addresses |
//	                    |   nft tables keelson-ID                       |
//	                    +-----------------------------------------------+
//
// Pods are routed, not switched: each has its address alone (/32, /128), and all that it sends passes the node's forward
// hook and connection tracking. The bridge has no ports, but those of pods that an earlier version made.
//
// Invariants:
//  1. Every kernel name derives from Config.ID, so several clusters share a machine.
//  2. A lease is on disk before its address is used and is deleted after the address is
//     free; an address never has two leases. A restart reads the leases; only a reboot voids them.
//  3. The nftables tables are replaced as a whole at start, in one transaction built from the
//     leases, and afterwards changed by elements only.
//  4. Attach and Detach may be repeated, interrupted and called for ids that never were.
//
// Limits: an accept in our forward chain cannot overrule a drop in another table. Where iptables-nft holds a chain FORWARD
// or INPUT with policy drop (docker, ufw), rules for our links are put in front of it; a drop by legacy iptables
// or by a hand-written nftables table must be opened by whoever made it; Firewalls names them.
package network

// SPDX-License-Identifier: Apache-2.0

// Package network is the built-in pod network of a node: a veth pair, an address
// and a route per pod, and an nftables table per IP family for masquerading and
// host ports. cluster passes it to the runtime, which attaches sandboxes; podroutes
// and proxy connect nodes and Services. It knows no Kubernetes objects and runs no
// other program: it uses netlink only.
//
//	pod netns            host
//	+------------+      +-----------------------------------------------+
//	| lo  eth0 --+------+-- kvHASH-ID   route to the pod's address      |
//	+------------+      |   kl-ID       bridge: the gateway's addresses |
//	                    |   nft tables keelson-ID                       |
//	                    +-----------------------------------------------+
//
// Pods are routed, not switched: each has a host prefix (/32, /128), and all its packets pass the node's forward hook
// and connection tracking. The bridge has no ports, except those of pods that an earlier version attached.
//
// Network composes these, each of which has its own lock:
//
//	names       what the kernel calls the network's things
//	leases      who has which address and host port (addresses, hostPorts), in memory and on disk (leaseRecords)
//	exempt      the destinations without masquerading
//	gateway     the bridge                                 \
//	forwarding  sysctls, by settings, which clusters share  |  made when Run or Purge opens
//	podLinks    veth pairs and routes                       |  the sockets of the kernel
//	tables      nftables, and foreignChains                 |
//	reaper      deletes the links of detached pods         /
//
// Invariants:
//  1. Every kernel name derives from Config.ID, so several clusters share a machine.
//  2. A lease is on disk before its address is used. An address never has two leases, and none while the link of its
//     last pod is being deleted. Leases survive a restart of the program, but not a reboot.
//  3. The nftables tables are replaced as a whole at start, in one transaction built from the
//     leases; afterwards only their set elements change.
//  4. Attach and Detach may be repeated, interrupted and called for unknown ids.
//
// Limits: an accept in this network's forward chain cannot overrule a drop in another table. Where iptables-nft has a
// chain FORWARD or INPUT with policy drop (docker, ufw), rules for the pods' links are inserted at its start. A drop by
// legacy iptables or by another nftables table must be opened by the administrator; Firewalls lists these.
package network

// SPDX-License-Identifier: Apache-2.0

// Package policy enforces NetworkPolicies on one node. State computes a Plan from policies, namespaces and pods,
// without I/O and incrementally; Table and State.Drain convert it to nftables rules; Agent runs the informers and
// writes the rules. cluster runs the Agent, and passes it a pod's addresses before the pod's containers start
// (Agent.Connected). It never writes to the API, and never changes another table.
//
//	forward hook, after destination NAT; a reply is looked at from the other side:
//	  client  -> @egress4/6  -> the chain of the policies that isolate the client -> peers, the server's port
//	  server  -> @ingress4/6 -> the chain of the policies that isolate the server -> peers, its port
//
// Invariants:
//  1. The cost of a packet depends only on the policies that select its two ends: a map lookup finds the chain of each
//     end.
//  2. Every packet, in both directions, is checked by the client and the server of its connection. So changed policies
//     apply to existing connections, replies pass, and DNAT of Services does not hide an end.
//  3. A chain never changes: other rules have another name. New and deleted pods change elements of sets and maps only.
//  4. Sets and chains exist only while a pod of this node needs them.
//  5. The Plan does not depend on the order of changes (except for an address that two pods have: the later one
//     counts).
//  6. A selector or block that does not parse allows nothing.
//  7. A rule takes a constant number of sets and kernel rules, however many peers and ports it has. What a namespace's
//     policies take on this node is bounded (bound.go). Above the bound its isolated pods exchange nothing; other
//     namespaces are as before.
package policy

// SPDX-License-Identifier: Apache-2.0

// Package policy enforces NetworkPolicies on one node. State turns policies, namespaces and pods into a Plan, purely and a change at a
// time; Table and Change.Delta turn that into nftables rules; Agent keeps the kernel at what the informers say. cluster runs the Agent and
// tells it of a pod's addresses before the pod's containers start. It never writes to the API, and touches no table but its own.
//
//	forward hook, after destination NAT; a reply is looked at from the other side:
//	  client  -> @egress4/6  -> the chain of the policies that isolate the client -> peers, the server's port
//	  server  -> @ingress4/6 -> the chain of the policies that isolate the server -> peers, its port
//
// Invariants:
//  1. What a packet costs depends on the policies that select its two ends, not on the others: a lookup in a map finds each end's chain.
//  2. Every packet is judged by its connection's ends (who opened it, who serves it), whichever way it goes: connections follow changes
//     of policies, replies pass, and translation by services hides no end.
//  3. A chain never changes: other rules have another name. Pods that come and go change elements of sets and maps.
//  4. Sets and chains exist while a pod of this node needs them.
//  5. State after any order of changes gives the Plan that a new State gives (but for which of two pods has an address that both claim: the later).
//  6. What is not understood (a selector or block that does not parse) allows nothing.
package policy

// SPDX-License-Identifier: Apache-2.0

// Package podroutes connects this node's pods with those of other nodes: it watches Nodes, and maintains routes to
// nodes in the same subnet, a VXLAN tunnel to others, or WireGuard to all. cluster runs it on every real node, next to
// package network, whose subpackage mesh computes and writes the kernel's state. It calls the API server through its
// client only, and never forwards a packet itself (except with user-space WireGuard, see mesh). Routes stay in the
// kernel when it ends.
package podroutes

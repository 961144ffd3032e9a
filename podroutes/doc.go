// SPDX-License-Identifier: Apache-2.0

// Package podroutes follows the cluster's nodes and keeps this machine's ways to their pods: routes where a node is a neighbour, a
// VXLAN tunnel otherwise, or WireGuard for all. It runs on every real node, beside the pod network, and talks to the server through its
// client only. What is in the kernel stays when it ends: pods reach each other while the server or this process is away.
package podroutes

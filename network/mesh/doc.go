// SPDX-License-Identifier: Apache-2.0

// Package mesh connects this machine to the pods of the cluster's other machines: by a route if the other machine is on
// the same link, else by a VXLAN tunnel, or by WireGuard for all. New computes a Plan without I/O; Kernel applies it by
// netlink. podroutes, which watches the nodes, calls it. It knows no Kubernetes objects, and never changes routes and
// links of other programs.
//
// Invariants:
//  1. Its routes have the protocol number 75 and a metric that derives from the cluster's id. No other route is changed
//     or deleted, so several clusters can share a machine.
//  2. The tunnel does not learn from packets: neighbour and forwarding entries are permanent and come from the plan.
//  3. Applying a plan twice changes nothing; what is not in the plan any more is deleted.
//  4. If a plan is encrypted, blackhole routes for its ranges exist before the routes by the tunnel and stay: packets
//     that the tunnel does not take are dropped, and packets that come in outside the tunnel with a source in the
//     ranges are dropped, too.
package mesh

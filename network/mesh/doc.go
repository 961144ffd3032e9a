// SPDX-License-Identifier: Apache-2.0

// Package mesh gives this machine the ways to the pods of the cluster's other machines: a route where the other is a
// neighbour on a link, a VXLAN tunnel otherwise, or WireGuard for all. New plan from what is known is pure; Kernel makes it so. The agent
// that follows the nodes calls it. It knows no Kubernetes objects, and touches no route and no link but its own.
//
// Invariants:
//  1. Every route of ours has the protocol number 75 and a metric that derives from the cluster's id: nothing else is ever
//     changed or deleted. Of several clusters on a machine each knows its own.
//  2. The tunnel learns nothing from packets: neighbours and machines behind it are written down from the plan.
//  3. Applying a plan twice changes nothing; what the plan has no longer goes.
//  4. Where a plan is encrypted, its ranges are closed by routes that let nothing through, before and beside the way through the tunnel: what the
//     tunnel does not take goes nowhere, and nothing that says it is from there comes in beside it.
package mesh

// SPDX-License-Identifier: Apache-2.0

// Package services computes the nftables table that serves Services, from Services, EndpointSlices and properties of
// the node. Package proxy calls it and writes the result; timeline/packet calls WayOf to predict a connection. It never
// does I/O. The cost of a packet does not depend on the number of Services.
//
// How a connection finds its endpoint (4 and 6 are families; each of the names exists for both):
//
//	nat prerouting, output -> chain services
//	    daddr . proto . port  vmap @cluster4      cluster IPs
//	    daddr . proto . port  vmap @external4     external IPs, addresses of load balancers
//	    local: proto . port   vmap @nodeports4
//	  each refers to a chain for the number of endpoints, such as cluster4-5, which all Services with five share:
//	    [mark for masquerade]
//	    dnat to daddr . proto . port . random mod 5 map @cluster-endpoints4
//	  Session affinity has its own chains: one for the port, and one for each endpoint, with a set of its clients.
//	  Packets of another cluster's pods on this machine, known by the group of their links, skip the cluster IPs.
//	filter prerouting, output, before nat: loadBalancerSourceRanges (@guarded4, @sources4)
//	filter prerouting, output, after nat: rejects packets that still have a cluster IP, or whose frontend has no
//	  endpoints
//	nat postrouting: masquerade of marked packets, and of pods that connect to themselves (@hairpin4)
//
// So the first packet of a connection costs a few hash lookups, and every other packet none.
//
// Invariants:
//  1. The table is a function of the objects, except for the numbers of endpoints in a map, which depend on the
//     previous table: an endpoint keeps its number, unless it is moved to fill a gap.
//  2. A change of an endpoint changes its elements, at most one that fills its gap, and the chain of the frontend.
//  3. If two Services have the same external address and port, the first one gets it, and the other one when that is
//     removed. Cluster IPs have precedence over external IPs.
//  4. No Service gets the address and port of an API server, of another node, or of a program of this node.
package services

// SPDX-License-Identifier: Apache-2.0

// Package services turns Services, their EndpointSlices and facts about the node into the nftables table that serves them. The proxy calls
// it and writes the result; timeline/packet asks it where a connection would go (WayOf). It does no I/O itself, and a packet costs the same
// with one Service and with ten thousand.
//
// How a connection finds its endpoint (4 and 6 are families; each of the names exists for both):
//
//	nat prerouting, output -> chain services
//	    daddr . proto . port  vmap @cluster4      cluster IPs
//	    daddr . proto . port  vmap @external4     external IPs, addresses of load balancers
//	    local: proto . port   vmap @nodeports4
//	  each leads to a chain that says how many endpoints there are, cluster4-5 say, which all Services with five share:
//	    [mark for masquerade]
//	    dnat to daddr . proto . port . random mod 5 map @cluster-endpoints4
//	  Session affinity has chains of its own: one for the port, one for each endpoint, with a set of the clients it has.
//	  Packets of another cluster's pods on this machine, known by the group of their links, go past the cluster IPs.
//	filter prerouting, output, before nat: loadBalancerSourceRanges (@guarded4, @sources4)
//	filter prerouting, output, after nat:  what is still sent to a cluster IP, or to a frontend without endpoints, is refused
//	nat postrouting: masquerade of what is marked, and of pods that reach themselves (@hairpin4)
//
// So the first packet of a connection costs a few hash lookups, whatever the number of Services, and every other packet none.
//
// Invariants:
//  1. The table is a function of the objects, but for the numbers of endpoints within a map, which depend on what was there before: an
//     endpoint that stays keeps its number, unless it is needed to fill a gap.
//  2. A change of an endpoint changes its own elements, at most one that fills its gap, and the frontends' number of endpoints.
//  3. An address and port that two Services ask for as external goes to the one that had it; the other gets it when that goes.
//     Cluster IPs come before external IPs.
package services

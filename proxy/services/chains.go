// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"

	"keelson/network/nft"
)

// list is the name of a map from frontend and number to endpoint.
type list string

const (
	clusterAll    list = "cluster-endpoints"
	externalAll   list = "external-endpoints"
	externalLocal list = "external-local"
	nodePortAll   list = "nodeport-endpoints"
	nodePortLocal list = "nodeport-local"
)

// kind is a kind of frontend.
type kind struct {
	name       string
	all, local list
	ports      bool // the key is protocol and port, without an address
}

var (
	clusterKind  = kind{name: "cluster", all: clusterAll}
	externalKind = kind{name: "external", all: externalAll, local: externalLocal}
	nodePortKind = kind{
		name:  "nodeports",
		all:   nodePortAll,
		local: nodePortLocal,
		ports: true,
	}
)

// pick returns the rule that sends a connection to one of n endpoints of a list.
func pick(f ipFamily, k kind, l list, n int) nft.Rule {
	to := []nft.Type{f.addr, nft.Port}
	if k.ports {
		return nft.Rule{
			nft.OfFamily(f.n), nft.DNAT(nft.Map(f.name(string(l)), to, nft.MetaL4Proto, nft.THDport, nft.Random(n))),
		}
	}
	return nft.Rule{nft.DNAT(nft.Map(f.name(string(l)), to, append(f.front(), nft.Random(n))...))}
}

// foreign returns the rules that mark packets for masquerading unless they come from a pod.
func foreign(f ipFamily, node Node) []nft.Rule {
	pods := node.pods(f.n)
	if len(pods) == 0 {
		return nil
	}
	var r nft.Rule
	for _, p := range pods {
		r = append(r, nft.Outside(f.saddr, p))
	}
	return []nft.Rule{append(r, nft.SetMark(masqueradeBit))}
}

// shortcut sends connections of this cluster's pods and of the node to a chain with all endpoints: the external traffic
// policy Local applies to external clients only.
func shortcut(f ipFamily, node Node, to string) []nft.Rule {
	var out []nft.Rule
	for _, p := range node.pods(f.n) {
		out = append(out, nft.Rule{nft.Within(f.saddr, p), nft.Goto(to)})
	}
	return append(out, nft.Rule{nft.OfFamily(f.n), nft.FromLocal(), nft.SetMark(masqueradeBit), nft.Goto(to)})
}

// Chains that Services share. The name of a chain determines its rules.

// clusterChain serves a cluster IP with n endpoints.
func clusterChain(f ipFamily, node Node, n int) nft.Chain {
	return nft.Chain{
		Name: fmt.Sprintf("%s-%d", f.name("cluster"), n),
		Rules: append(foreign(f, node),
			pick(f, clusterKind, clusterAll, n)),
	}
}

// plainChain sends connections of any source to one of n endpoints.
func plainChain(f ipFamily, k kind, n int) nft.Chain {
	return nft.Chain{Name: fmt.Sprintf("%s-plain-%d", f.name(k.name), n), Rules: []nft.Rule{pick(f, k, k.all, n)}}
}

// outerChain serves external clients with the external traffic policy Cluster.
func outerChain(f ipFamily, k kind, n int) nft.Chain {
	return nft.Chain{
		Name: fmt.Sprintf("%s-%d", f.name(k.name), n),
		Rules: []nft.Rule{
			{nft.SetMark(masqueradeBit)}, pick(f, k, k.all, n),
		},
	}
}

// outerLocalChain serves external clients with the external traffic policy Local. local is the number of local
// endpoints, all of all.
func outerLocalChain(f ipFamily, node Node, k kind, local, all int) nft.Chain {
	rules := shortcut(f, node, plainChain(f, k, all).Name)
	if local == 0 {
		rules = append(rules, nft.Rule{nft.Drop()})
	} else {
		rules = append(rules, pick(f, k, k.local, local))
	}
	return nft.Chain{Name: fmt.Sprintf("%s-%d-of-%d", f.name(k.name), local, all), Rules: rules}
}

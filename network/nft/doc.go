// SPDX-License-Identifier: Apache-2.0

// Package nft is a small declarative layer over nftables: a Table is the desired state, and a Writer applies it to the
// kernel in one transaction: the whole table at first and after damage, later the difference only. proxy/services and
// proxy/policy call it, each with its own table. It knows no Kubernetes objects, runs no program, and never changes
// another table.
//
// A table is a value that any package can build and print:
//
//	t := nft.NewTable("keelson-1a2b-svc")
//	t.AddSet(nft.Set{Name: "services", Key: []nft.Type{nft.IPv4, nft.L4Proto, nft.Port}, Verdicts: true})
//	t.Put("services", nft.Addr(ip)+nft.Proto(6)+nft.PortNumber(80), nft.ToChain("pick-5"))
//	t.AddChain(nft.Chain{Name: "prerouting", Type: nft.NAT, Hook: nft.Prerouting, Priority: -100, Rules: []nft.Rule{
//		{nft.Vmap("services", nft.IPDaddr, nft.MetaL4Proto, nft.THDport)},
//	}})
//	fmt.Print(t) // in nft's syntax: for golden files and for people
//
//	w, err := nft.Open("keelson-1a2b-svc", log)
//	err = w.Write(t)      // the whole table, or the difference to the last one
//	err = w.Change(delta) // a known difference: its cost depends on the change, not on the table
//	// calls the function when another program has changed the table; Repair writes it again
//	err = w.Watch(ctx, func() { ... })
//
// Elements of sets are strings of bytes, made of Addr, Proto, PortNumber, Number, Net and Range joined by "+" in the
// order of the set's Key. Rules are typed statements. They match operands (IPDaddr, THDport, Random); several operands
// are a concatenation. A rule with a field of IPv4 or IPv6 applies to packets of that family only.
//
// Invariants:
//  1. Write and Change are one netlink batch, which the kernel applies completely or not at all, even if the process
//     dies. Only beyond the Writer's bound there are several: a change prepares new sets and chains first, and deletes
//     last; a whole table begins with all rules and verdict maps, and other elements follow. So a packet never sees a
//     part of a chain's rules.
//  2. A Table that was passed to Write belongs to the Writer from then on.
//  3. After an error the state of the kernel is unknown: the next transaction replaces the whole table.
//  4. Rules use no register of an earlier rule.
//  5. Elements that packets have added to sets with a Timeout survive the replacement of the table, also by another
//     process, with their remaining time.
package nft

// SPDX-License-Identifier: Apache-2.0

// Package nft is a small declarative layer over nftables: a Table says what should be in the kernel, a Writer makes it so, in one
// transaction: the whole table at first and after damage, afterwards only what differs. The proxy's services and network policies call
// it, each with a table of its own. It knows no Kubernetes, runs no program, and touches no table but the one it was given.
//
// A table is a value that anybody can build and print:
//
//	t := nft.NewTable("keelson-1a2b-svc")
//	t.AddSet(nft.Set{Name: "services", Key: []nft.Type{nft.IPv4, nft.L4Proto, nft.Port}, Verdicts: true})
//	t.Put("services", nft.Addr(ip)+nft.Proto(6)+nft.PortNumber(80), nft.ToChain("pick-5"))
//	t.AddChain(nft.Chain{Name: "prerouting", Type: nft.NAT, Hook: nft.Prerouting, Priority: -100, Rules: []nft.Rule{
//		{nft.Vmap("services", nft.IPDaddr, nft.MetaL4Proto, nft.THDport)},
//	}})
//	fmt.Print(t) // as nft would print it: for golden files and for people
//
//	w, err := nft.Open("keelson-1a2b-svc", log)
//	err = w.Write(t)      // all of it, or the difference to what was written last
//	err = w.Change(delta) // the same for one who knows the difference: the cost follows the change, not the table
//	err = w.Watch(ctx, func() { ... }) // somebody else changed our table: Repair writes it again
//
// Elements of sets are strings of bytes, made of Addr, Proto, PortNumber, Number, Net and Range joined by "+" in the order of the set's
// Key. Rules are typed statements; what a rule looks at are operands (IPDaddr, THDport, Random, Map), and several of them are a
// concatenation. A rule that names a field of IPv4 or IPv6 looks at packets of that family alone.
//
// Invariants:
//  1. What Write and Change do is one netlink batch: the kernel takes all of it or nothing, whenever the process dies.
//     Only a table whose elements fill more than Writer's bound is filled in several, the rules and the first elements being the first.
//  2. A Table that was given to Write belongs to the Writer from then on.
//  3. After an error the Writer believes nothing of the kernel: its next transaction replaces the whole table.
//  4. Rules use no register of an earlier rule.
//  5. What packets have added to sets with a Timeout outlives the replacement of the table, also by another process, for the time that it had left.
package nft

// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables"
)

// guarded is a table in which packets from an address go to a chain with n rules, each with a set of n elements.
func guarded(generation string, n int) *Table {
	table := NewTable("test")
	from := netip.MustParseAddr("10.0.0.1")
	table.AddSet(Set{Name: "m", Key: []Type{IPv4}, Verdicts: true})
	table.AddChain(Chain{
		Name:  "base",
		Type:  Filter,
		Hook:  Forward,
		Rules: []Rule{{Vmap("m", IPSaddr)}},
	})
	chain := Chain{Name: "to-" + generation}
	for i := range n {
		set := fmt.Sprint("s-", generation, "-", i)
		table.AddSet(Set{Name: set, Key: []Type{Port}})
		for j := range n {
			table.Put(set, PortNumber(uint16(j)), "")
		}
		chain.Rules = append(chain.Rules, Rule{In(set, THDport), Accept()})
	}
	chain.Rules = append(chain.Rules, Rule{Drop()})
	table.AddChain(chain)
	table.Put("m", Addr(from), ToChain(chain.Name))
	return table
}

// TestPartsOfAChangeAreInvisible: a change beyond the bound takes many transactions. After each of them packets still
// find a chain, with all its rules and elements.
func TestPartsOfAChangeAreInvisible(t *testing.T) {
	const n = 20
	ns := space(t)
	writer := open(t, ns)
	if err := writer.Write(guarded("a", n)); err != nil {
		t.Fatal(err)
	}
	other, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		t.Fatal(err)
	}
	writer.bound = 8 << 10
	parts := 0
	writer.sent = func() {
		parts++
		els, err := other.GetSetElements(Set{Name: "m", Key: []Type{IPv4}, Verdicts: true}.kernel(writer.table()))
		if err != nil || len(els) != 1 {
			t.Errorf("part %d: the map has %v, %v", parts, els, err)
			return
		}
		chain := "to-a"
		if strings.Contains(string(els[0].Val), "to-b") { // the library does not parse verdicts
			chain = "to-b"
		}
		rules, err := other.GetRules(writer.table(), &nftables.Chain{Name: chain, Table: writer.table()})
		if err != nil || len(rules) != n+1 {
			t.Errorf("part %d: chain %s has %d rules, %v", parts, chain, len(rules), err)
		}
		for i := range n {
			set := Set{Name: fmt.Sprint("s-", chain[len("to-"):], "-", i), Key: []Type{Port}}
			els, err := other.GetSetElements(set.kernel(writer.table()))
			if err != nil || len(els) != n {
				t.Errorf("part %d: set %s has %d elements, %v", parts, set.Name, len(els), err)
			}
		}
	}
	if err := writer.Write(guarded("b", n)); err != nil {
		t.Fatal(err)
	}
	if parts < 5 {
		t.Errorf("%d parts: this test wants many", parts)
	}
	writer.sent = nil
	if !writer.Intact() {
		t.Error("the kernel has something else")
	}
}

// TestLostAnswers: the kernel drops answers that do not fit in the socket's buffer. The transaction was made
// nevertheless, so it is no error, and the table is not written again.
func TestLostAnswers(t *testing.T) {
	writer := open(t, space(t))
	if err := writer.Write(guarded("a", 2)); err != nil {
		t.Fatal(err)
	}
	writer.receive = 4 << 10
	if err := writer.hangUpLocked(); err != nil {
		t.Fatal(err)
	}
	parts := 0
	writer.sent = func() { parts++ }
	for i, n := range []int{100, 3, 120} {
		if err := writer.Write(guarded(fmt.Sprint("b", i), n)); err != nil {
			t.Fatalf("%d rules: %v", n, err)
		}
		if !writer.Intact() {
			t.Errorf("%d rules: the kernel has something else", n)
		}
	}
	if err := writer.Repair(); err != nil || !writer.Intact() {
		t.Errorf("the whole table: %v", err)
	}
	if parts > 1 {
		t.Errorf("answers to %d transactions arrived: this test wants them lost", parts)
	}
}

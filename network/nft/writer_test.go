// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netns"
)

// space returns the descriptor of a new network namespace.
func space(t testing.TB) int {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: nftables in a network namespace of its own")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	old, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(old); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return int(ns)
}

func open(t testing.TB, ns int) *Writer {
	t.Helper()
	w, err := Open(Config{Name: "test", NetNS: ns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// sample returns a table with every kind of set, chain and statement.
func sample() *Table {
	table := NewTable("test")
	a := netip.MustParseAddr
	for _, f := range []struct {
		n            int
		addr         Type
		saddr, daddr Field
		svc, ep      netip.Addr
	}{
		{4, IPv4, IPSaddr, IPDaddr, a("10.96.0.10"), a("10.244.0.5")},
		{6, IPv6, IP6Saddr, IP6Daddr, a("fd00::10"), a("fd01::5")},
	} {
		front := []Type{f.addr, L4Proto, Port}
		to := []Type{f.addr, Port}
		name := func(s string) string { return fmt.Sprint(s, f.n) }
		table.AddSet(Set{Name: name("services"), Key: front, Verdicts: true})
		table.AddSet(Set{Name: name("picks"), Key: []Type{Num}, Verdicts: true})
		table.AddSet(Set{Name: name("endpoints"), Key: append(append([]Type{}, front...), Num), Data: to})
		table.AddSet(Set{Name: name("valid"), Key: append(append([]Type{}, front...), to...)})
		table.AddSet(Set{Name: name("affinity"), Key: []Type{f.addr}, Timeout: time.Hour})
		table.AddSet(Set{Name: name("sources"), Key: append(append([]Type{}, front...), f.addr), Interval: true})
		table.AddSet(Set{Name: name("nets"), Key: []Type{f.addr}, Interval: true})
		key := Addr(f.svc) + Proto(6) + PortNumber(80)
		table.Put(name("services"), key, ToChain(name("pick")))
		table.Put(name("services"), Addr(f.svc)+Proto(17)+PortNumber(53), ToDrop)
		table.Put(name("picks"), Number(0), ToChain(name("one")))
		table.Put(name("endpoints"), key+Number(0), Addr(f.ep)+PortNumber(8080))
		table.Put(name("valid"), key+Addr(f.ep)+PortNumber(8080), "")
		table.Put(name("nets"), RangeKey(Net(netip.PrefixFrom(f.svc, 30))), "")
		table.Put(name("nets"), RangeKey(Net(netip.PrefixFrom(f.ep, 32))), "")
		table.Put(name("sources"), RangeKey(Only(Addr(f.svc)), Only(Proto(6)), Only(PortNumber(80)),
			Net(netip.PrefixFrom(f.ep, 24))), "")
		key0 := []Operand{f.daddr, MetaL4Proto, THDport}
		table.AddChain(Chain{
			Name: name("pick"),
			Rules: []Rule{
				{In(name("affinity"), f.saddr), Goto(name("one"))},
				{Vmap(name("picks"), Random(1))},
				{DNAT(Map(name("endpoints"), to, append(key0, Random(1))...))},
			},
		})
		table.AddChain(Chain{
			Name: name("one"),
			Rules: []Rule{
				{Update(name("affinity"), time.Minute, f.saddr)},
				{DNATTo(netip.AddrPortFrom(f.ep, 8080))},
			},
		})
		table.AddChain(Chain{
			Name: name("refuse"),
			Rules: []Rule{
				{In(name("sources"), append(key0, f.saddr)...), Return()},
				{Within(f.saddr, netip.PrefixFrom(f.ep, 24)), Outside(f.daddr, netip.PrefixFrom(f.svc, 12)), Reset()},
				{OfFamily(f.n), Is(MetaL4Proto, Proto(17)), Unreachable()},
			},
		})
	}
	table.AddChain(Chain{
		Name:     "prerouting",
		Type:     NAT,
		Hook:     Prerouting,
		Priority: -100,
		Rules: []Rule{
			{Vmap("services4", IPDaddr, MetaL4Proto, THDport)},
			{Vmap("services6", IP6Daddr, MetaL4Proto, THDport)},
			{ToLocal(), SetMark(0x4000)},
			{Is(IIFName, InterfaceName("eth0")), FromLocal(), Return()},
		},
	})
	table.AddChain(Chain{
		Name:     "filter",
		Type:     Filter,
		Hook:     Prerouting,
		Priority: -110,
		Rules: []Rule{
			{State(New), Jump("refuse4")}, {State(New), Jump("refuse6")}, {State(Established | Related), Accept()},
		},
	})
	table.AddChain(Chain{
		Name:     "postrouting",
		Type:     NAT,
		Hook:     Postrouting,
		Priority: 100,
		Rules: []Rule{
			{Marked(0x4000), ClearMark(0x4000), Masquerade()},
			{Translated(), Accept()},
			{IsNot(MetaL4Proto, Proto(6)), Drop()},
		},
	})
	return table
}

func TestTextIsGolden(t *testing.T) {
	golden := filepath.Join("testdata", "sample.nft")
	got := sample().String()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", golden, d)
	}
}

func TestKernelTakesEverything(t *testing.T) {
	ns := space(t)
	writer := open(t, ns)
	if err := writer.Write(sample()); err != nil {
		t.Fatal(err)
	}
	if !writer.Intact() {
		t.Error("the kernel does not hold what was written")
	}
	if text, err := list(t, ns); err != nil || !strings.Contains(text, "dnat") {
		t.Errorf("nft list ruleset: %v\n%s", err, text)
	} else {
		t.Log(text)
	}
	if err := writer.Repair(); err != nil || !writer.Intact() {
		t.Errorf("written again: %v", err)
	}
	if err := writer.Delete(); err != nil {
		t.Fatal(err)
	}
	if text, _ := list(t, ns); strings.Contains(text, "test") {
		t.Errorf("after Delete:\n%s", text)
	}
	if err := writer.Delete(); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
}

// list returns the output of nft list ruleset. Without the program nft it skips the test.
func list(t testing.TB, ns int) (string, error) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed")
	}
	c := exec.CommandContext(t.Context(), "nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), ns), "nft",
		"list", "ruleset")
	out, err := c.CombinedOutput()
	return string(out), err
}

func TestDifferencesEqualTheWhole(t *testing.T) {
	ns := space(t)
	writer := open(t, ns)
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 1))
	build := func() *Table {
		table := NewTable("test")
		table.AddSet(Set{Name: "m", Key: []Type{IPv4, Port}, Verdicts: true})
		table.AddSet(Set{Name: "s", Key: []Type{Port}})
		if rnd.IntN(2) == 0 {
			table.AddSet(Set{Name: "nets", Key: []Type{IPv4}, Interval: true})
			for i := range rnd.IntN(20) {
				table.Put("nets", RangeKey(Net(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))), "")
			}
		}
		base := Chain{
			Name:     "base",
			Type:     NAT,
			Hook:     Prerouting,
			Priority: -100,
			Rules:    []Rule{{Vmap("m", IPDaddr, THDport)}},
		}
		for i := range 8 {
			if rnd.IntN(2) == 0 {
				continue
			}
			name := fmt.Sprint("c", i)
			rules := []Rule{{In("s", THDport), SetMark(1 << rnd.IntN(3))}}
			if old := fmt.Sprint("c", i-1); table.Chains[old].Name != "" {
				rules = append(rules, Rule{Jump(old)})
			}
			table.AddChain(Chain{Name: name, Rules: rules})
			for j := range rnd.IntN(30) {
				table.Put("m", Addr(netip.AddrFrom4([4]byte{1, 1, 1, byte(j)}))+PortNumber(uint16(rnd.IntN(4))),
					ToChain(name))
			}
		}
		for range rnd.IntN(100) {
			table.Put("s", PortNumber(uint16(rnd.IntN(200))), "")
		}
		table.AddChain(base)
		return table
	}
	for i := range 60 {
		writer.bound = []int{batchBytes, 1 << 10, 8 << 10}[i/3%3] // in one transaction, or in many
		want := build()
		if i%3 == 2 { // use Change with a known difference
			d, _ := Diff(writer.want, want)
			d.replaced = nil
			if err := writer.Change(&d); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
		} else if err := writer.Write(want); err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, i, err)
		}
		if d := cmp.Diff(want.String(), writer.want.String()); d != "" {
			t.Fatalf("seed %d, step %d: the writer's state (-want +got):\n%s", seed, i, d)
		}
		if !writer.Intact() {
			t.Fatalf("seed %d, step %d: the kernel has something else", seed, i)
		}
	}
}

func TestLargeTablesGoInBoundedBatches(t *testing.T) {
	w := open(t, space(t))
	w.bound = 64 << 10
	tb := NewTable("test")
	tb.AddSet(Set{Name: "s", Key: []Type{IPv4, Port}})
	for i := range 20000 {
		tb.Put("s", Addr(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}))+PortNumber(80), "")
	}
	if err := w.Write(tb); err != nil {
		t.Fatal(err)
	}
	if !w.Intact() {
		t.Error("elements are missing")
	}
}

func TestWatchHearsOfOthersOnly(t *testing.T) {
	ns := space(t)
	writer := open(t, ns)
	if err := writer.Write(sample()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() { done <- writer.Watch(ctx, func() { changed <- struct{}{} }) }() // ends with ctx
	other, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		t.Fatal(err)
	}
	foreign := &nftables.Table{Name: "docker", Family: nftables.TableFamilyINet}
	for { // until Watch listens
		writer.mu.Lock()
		ready := writer.watch != nil
		writer.mu.Unlock()
		if ready {
			break
		}
		runtime.Gosched()
	}
	other.AddTable(foreign)
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := writer.Repair(); err != nil {
		t.Fatal(err)
	}
	writer.mu.Lock()
	if err := writer.hangUpLocked(); err != nil { // changes through a new socket are the Writer's own, too
		t.Error(err)
	}
	writer.mu.Unlock()
	if err := writer.Repair(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
		t.Error("notified of a change to another table")
	case <-time.After(100 * time.Millisecond):
	}
	other.FlushRuleset()
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
		t.Fatal("not notified of the flush of the rule set")
	}
	if writer.Intact() {
		t.Error("intact, though everything was flushed")
	}
	if err := writer.Repair(); err != nil || !writer.Intact() {
		t.Errorf("repaired: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestDamageIsMended: when the kernel refuses a difference, because another program has changed the table, the next
// transaction writes the whole table.
func TestDamageIsMended(t *testing.T) {
	ns := space(t)
	writer := open(t, ns)
	if err := writer.Write(sample()); err != nil {
		t.Fatal(err)
	}
	other, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		t.Fatal(err)
	}
	other.FlushRuleset()
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	var d Delta
	d.PutElement("nets4", RangeKey(Net(netip.MustParsePrefix("192.0.2.0/24"))), "")
	if err := writer.Change(&d); err == nil {
		t.Fatal("the kernel took elements of a set that is not there")
	}
	if err := writer.Change(&Delta{}); err != nil {
		t.Fatal(err)
	}
	if !writer.Intact() || len(writer.want.Elements["nets4"]) != 3 {
		t.Error("not repaired, or the refused change is lost")
	}
}

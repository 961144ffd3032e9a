// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
)

// TestRememberedElementsOutliveTheTable: elements that packets have added are kept, with their remaining time, when
// another Writer replaces the table.
func TestRememberedElementsOutliveTheTable(t *testing.T) {
	ns := space(t)
	writer := open(t, ns)
	if err := writer.Write(sample()); err != nil {
		t.Fatal(err)
	}
	other, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		t.Fatal(err)
	}
	client := netip.MustParseAddr("192.0.2.9").AsSlice()
	in := map[string]nftables.SetElement{
		"affinity4": {Key: client, Timeout: time.Minute},
		"affinity6": {
			Key: netip.MustParseAddr("2001:db8::9").AsSlice(),
		},
	}
	for name, e := range in {
		if err := other.SetAddElements(writer.want.Sets[name].kernel(writer.table()),
			[]nftables.SetElement{e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	again := open(t, ns) // as after a restart
	want := sample()
	delete(want.Sets, "affinity6")
	want.AddSet(Set{Name: "affinity6", Key: []Type{IPv6}, Timeout: time.Minute}) // a shorter time-out than before
	for _, write := range []func() error{func() error { return again.Write(want) }, again.Repair} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
		for name := range in {
			got, err := other.GetSetElements(again.want.Sets[name].kernel(writer.table()))
			if err != nil || len(got) != 1 || got[0].Expires > time.Minute || got[0].Expires < 30*time.Second {
				t.Errorf("%s: got %+v, %v; want one element for a minute", name, got, err)
			}
		}
	}
	// A new table without the dynamic sets is written without an error.
	less := sample()
	for name := range in {
		delete(less.Sets, name)
		delete(less.Chains, strings.Replace(name, "affinity", "pick", 1))
		delete(less.Chains, strings.Replace(name, "affinity", "one", 1))
		delete(less.Elements, strings.Replace(name, "affinity", "services", 1))
		delete(less.Elements, strings.Replace(name, "affinity", "picks", 1))
	}
	if err := open(t, ns).Write(less); err != nil {
		t.Error(err)
	}
}

// big returns one of two large tables that differ in every element.
func big(which int) *Table {
	table := NewTable("test")
	table.AddSet(Set{Name: "endpoints", Key: []Type{IPv4, Port}, Data: []Type{IPv4, Port}})
	for i := range 2000 {
		a := netip.AddrFrom4([4]byte{10, byte(which), byte(i >> 8), byte(i)})
		table.Put("endpoints", Addr(a)+PortNumber(80), Addr(a)+PortNumber(8080))
	}
	table.AddChain(Chain{
		Name:     "prerouting",
		Type:     NAT,
		Hook:     Prerouting,
		Priority: -100,
		Rules: []Rule{
			{DNAT(Map("endpoints", []Type{IPv4, Port}, IPDaddr, THDport))},
		},
	})
	return table
}

// TestKilledWriter kills a process that replaces one table by the other again and again. At any time the kernel must
// have exactly one of them, completely.
func TestKilledWriter(t *testing.T) {
	if os.Getenv("NFT_WRITES_UNTIL_KILLED") != "" {
		writeUntilKilled(t)
		return
	}
	ns := space(t)
	killed := map[string]int{}
	for range 12 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "NFT_WRITES_UNTIL_KILLED=1")
		inside, err := os.Open(fmt.Sprint("/proc/self/fd/", ns))
		if err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{inside}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = inside.Close()
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("child: %q, %v", line, err)
		}
		time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // any moment of a transaction
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		whose, n := kernelHas(t, ns)
		if n != 2000 {
			t.Fatalf("after kill -9 the kernel has %d elements, of %s", n, whose)
		}
		killed[whose]++
	}
	t.Log("killed with", killed)
	w := open(t, ns)
	if err := w.Write(big(7)); err != nil || !w.Intact() {
		t.Errorf("taken over: %v", err)
	}
}

// kernelHas counts the elements in the kernel, and returns the names of the tables that they belong to; several names
// are an error.
func kernelHas(t *testing.T, ns int) (whose string, n int) {
	conn, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		t.Fatal(err)
	}
	els, err := conn.GetSetElements(big(1).Sets["endpoints"].kernel(&nftables.Table{
		Name:   "test",
		Family: nftables.TableFamilyINet,
	}))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[byte]bool{}
	for _, e := range els {
		seen[e.Key[1]] = true
	}
	if len(seen) != 1 {
		t.Fatalf("elements of %d tables", len(seen))
	}
	for b := range seen {
		whose = fmt.Sprint(b)
	}
	return whose, len(els)
}

func writeUntilKilled(t *testing.T) {
	const fd = 3 // the first of ExtraFiles
	for i := 0; ; i++ {
		w := open(t, fd) // a new Writer: the first Write is the whole table
		if err := w.Write(big(1 + i%2)); err != nil {
			t.Fatal(err)
		}
		if err := w.Write(big(1 + (i+1)%2)); err != nil { // the difference, which has every element
			t.Fatal(err)
		}
		if i == 0 {
			fmt.Println("begun") // the parent reads it
		}
		_ = w.Close()
	}
}

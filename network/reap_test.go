// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
)

// TestAddressOfADroppedLease: no pod gets the address of a link that still exists.
func TestAddressOfADroppedLease(t *testing.T) {
	cfg := Config{ID: "x", Dir: t.TempDir(), PodCIDRs: ranges("10.42.0.0/30")} // one address
	network, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := network.leases.take("first", "/ns", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := network.leases.drop("first", first); err != nil {
		t.Fatal(err)
	}
	if _, _, err := network.leases.take("second", "/ns", nil); !errors.Is(err, errNoAddress) {
		t.Errorf("while the link exists: got %v, want %v", err, errNoAddress)
	}
	network.leases.free(first.Link, first.Addrs)
	second, _, err := network.leases.take("second", "/ns", nil)
	if err != nil || second.Addrs[0] != first.Addrs[0] {
		t.Errorf("after the link: got %v, %v, want %s", second, err, first.Addrs)
	}
}

// TestLinkIsDeletedOnce: a pod that is attached again waits until its old link is deleted, and the new link of the name
// is not deleted in place of the old one.
func TestLinkIsDeletedOnce(t *testing.T) {
	network, err := New(Config{ID: "x", Dir: t.TempDir(), PodCIDRs: ranges("10.42.0.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		removed := make(chan string)
		reaper := newReaper(func(link string) error {
			removed <- link
			return nil
		}, network.leases, slog.New(slog.DiscardHandler))
		reaper.deleteLater("kv-1")
		background := make(chan bool, 1)
		attach := make(chan bool, 1)
		go func() { background <- reaper.deleteWaiting() }() // ends when removed is received
		synctest.Wait()
		go func() { // ends when removed is received
			reaper.finish("kv-1")
			attach <- true
		}()
		synctest.Wait()
		select {
		case <-attach:
			t.Error("attached before the old link was deleted")
		default:
		}
		<-removed
		<-background
		select {
		case <-removed:
			t.Error("deleted twice")
		case <-attach:
		}
	})
}

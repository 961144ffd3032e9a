// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
)

// TestCallsWaitForTheStart: the runtime starts while the network starts, and may call before it is up.
func TestCallsWaitForTheStart(t *testing.T) {
	needRoot(t)
	cfg := newConfig(t)
	network, stop := start(t, cfg)
	ns := newNetns(t)
	want, err := network.Attach(t.Context(), "stays", ns, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := network.Attach(t.Context(), "goes", newNetns(t), nil); err != nil {
		t.Fatal(err)
	}
	stop()
	if network, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := network.Detach(over, "goes"); !errors.Is(err, errNotRunning) {
		t.Errorf("Detach without a start, its context done: got %v, want %v", err, errNotRunning)
	}
	detached := make(chan error, 1)
	attached := make(chan error, 1)
	var got []netip.Addr
	go func() { detached <- network.Detach(t.Context(), "goes") }() // ends when Run has begun
	go func() {                                                     // ends when Run has begun
		var err error
		got, err = network.Attach(t.Context(), "stays", ns, nil)
		attached <- err
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- network.Run(ctx, func() {}) }() // ends with ctx
	if err := errors.Join(<-detached, <-attached); err != nil {
		t.Error(err)
	}
	if !slices.Equal(got, want) || !slices.Equal(network.Attached(), []string{"stays"}) {
		t.Errorf("attached %q with %v, want stays with %v", network.Attached(), got, want)
	}
	if err := network.Detach(t.Context(), "stays"); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

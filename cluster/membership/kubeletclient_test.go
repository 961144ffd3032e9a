// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"keelson/cluster/credentials"
	"keelson/pki"
)

// TestClientAuthorityIsLearnedLater: a kubelet that met an API server of an earlier version, which names no authority,
// asks again when it is called, and so lets the server in after the server's upgrade too. While no one calls it asks
// nothing.
func TestClientAuthorityIsLearnedLater(t *testing.T) {
	cluster, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	own, err := pki.Open(t.TempDir(), credentials.KubeletClientAuthority)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		kubeletClientCAs := newKubeletClientCAs(x509.NewCertPool())
		var asked atomic.Int64
		var broken, upgraded atomic.Bool
		broken.Store(true)
		ask := func(context.Context) (bool, error) {
			asked.Add(1)
			if broken.Load() {
				return false, errors.New("connection refused")
			}
			if !upgraded.Load() {
				return false, nil
			}
			return true, kubeletClientCAs.set(own.CertPEM())
		}
		unwatched := func(context.Context) bool { return false }
		log := slog.New(slog.DiscardHandler)
		go kubeletClientCAs.follow(ctx, false, ask, unwatched, cluster.CertPEM(), log) // ends with ctx
		believes := func(when string, want *pki.Authority) {
			t.Helper()
			synctest.Wait()
			if !kubeletClientCAs.pool.Load().Equal(want.Pool()) {
				t.Errorf("%s: another authority is trusted", when)
			}
		}
		time.Sleep(2 * time.Second)
		broken.Store(false)
		time.Sleep(time.Minute)
		believes("an older server", cluster)
		before := asked.Load()
		upgraded.Store(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if asked.Load() != before {
			t.Errorf("asked %d times while no server called", asked.Load()-before)
		}
		kubeletClientCAs.Pool() // the upgraded server calls, in vain
		believes("an upgraded server", own)
		before = asked.Load()
		for range 60 { // calls of each minute
			kubeletClientCAs.Pool()
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if n := asked.Load() - before; n > 6 {
			t.Errorf("asked %d times in an hour although it is known", n)
		}
		upgraded.Store(false)
		time.Sleep(time.Hour)
		believes("a server that does not say any more", own)
	})
}

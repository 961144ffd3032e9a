// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sleepUntil is linux.SleepUntil on the clock of a synctest bubble.
func sleepUntil(ctx context.Context, end time.Time) error {
	select {
	case <-time.After(time.Until(end)):
	case <-ctx.Done():
	}
	return nil
}

// keep runs a keeper until the test ends.
func keep(t *testing.T, k *Keeper) {
	t.Helper()
	k.SleepUntil = sleepUntil
	k.Log = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx, func() {}) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
}

// handshake connects a client to a server, each with its certificate and both verified.
func handshake(ca *Authority, server, client *Leaf) error {
	a, b := net.Pipe()
	defer func() { _ = errors.Join(a.Close(), b.Close()) }()
	serving := tls.Server(a, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: server.Serve,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      ca.Pool(),
	})
	calling := tls.Client(b, &tls.Config{
		MinVersion:           tls.VersionTLS12,
		ServerName:           "localhost",
		GetClientCertificate: client.Show,
		RootCAs:              ca.Pool(),
	})
	served := make(chan error, 1)
	go func() { served <- serving.Handshake() }() // ends with the pipe
	err := calling.Handshake()
	if err != nil {
		_ = b.Close()
	}
	return errors.Join(err, <-served)
}

// TestKeeper: on a clock that runs for three years, server and client understand each other all the time, without a
// restart; the keeper wakes for a renewal only, and the kubeconfigs are written then.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca, err := Open(dir, "ca")
		if err != nil {
			t.Fatal(err)
		}
		server, err := ca.ServerLeaf("apiserver", server())
		if err != nil {
			t.Fatal(err)
		}
		client, err := ca.ClientLeaf("admin", Subject{Name: "admin"})
		if err != nil {
			t.Fatal(err)
		}
		first := server.Certificate()
		written := 0
		fails := true
		k := &Keeper{
			Leaves: []*Leaf{server, client},
			Others: func() []Info { return []Info{ca.Info()} },
			Changed: func(context.Context) error {
				written++
				if fails {
					fails = false
					return errors.New("the disk is full")
				}
				return nil
			},
			Warn: func(_ Info, text string) { t.Errorf("warned: %s", text) },
		}
		keep(t, k)
		for day := range 3 * 366 {
			if err := handshake(ca, server, client); err != nil {
				t.Fatalf("on day %d: %v", day, err)
			}
			if day == 245 && server.Certificate() == first {
				t.Error("not renewed on day 245")
			}
			time.Sleep(24 * time.Hour)
			synctest.Wait()
		}
		if written < 8 || written > 12 {
			t.Errorf("%d times written, want once for each of four or five renewals of two, and once more", written)
		}
	})
}

// TestKeeperWarns: users are warned each day of a certificate that no one renews, from some time before its end.
func TestKeeperWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca, err := Open(dir, "ca")
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Server("mine", server())
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "mine.crt")
		begin := time.Now()
		var mu sync.Mutex
		var warned []string
		// warnings returns what was warned of since it was called last.
		warnings := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			got := warned
			warned = nil
			return got
		}
		k := &Keeper{
			Others: func() []Info { return append(DescribeFile("tls-cert-file", file, ByOwner), ca.Info()) },
			Warn: func(_ Info, text string) {
				mu.Lock()
				defer mu.Unlock()
				warned = append(warned, fmt.Sprintf("day %d: %s", int(time.Since(begin).Hours()/24), text))
			},
		}
		keep(t, k)
		time.Sleep(350 * day)
		if got := warnings(); len(got) > 0 {
			t.Errorf("warned too early: %v", got)
		}
		time.Sleep(20 * day)
		if got := warnings(); len(got) < 15 || len(got) > 21 || !strings.HasPrefix(got[0],
			"day 351: certificate tls-cert-file expires in") || !strings.Contains(got[len(got)-1], "expired") ||
			!strings.HasSuffix(got[0], "put a new one into "+file) {
			t.Errorf("got %d warnings:\n%s", len(got), strings.Join(got, "\n"))
		}
		if ca, err = Open(dir, "ca"); err != nil {
			t.Fatal(err)
		}
		if pair, err = ca.Server("mine", server()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, pair.CertPEM, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * day)
		if got := warnings(); len(got) > 0 {
			t.Errorf("warned of a new certificate: %v", got)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(caLife - 470*day - 30*day)
		if got := warnings(); !strings.Contains(strings.Join(got, "\n"), "certificate ca expires in") {
			t.Errorf("not warned of the authority's end: %v", got)
		}
	})
}

// TestRenew: certificates are renewed where nothing runs, with their kubeconfigs; a Leaf in use takes them over.
func TestRenew(t *testing.T) {
	dir := t.TempDir()
	ca, err := Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open(dir, "front-proxy-ca")
	if err != nil {
		t.Fatal(err)
	}
	subject := Subject{Name: "system:kube-scheduler", Groups: []string{"a", "b"}}
	scheduler, err := ca.ClientLeaf("scheduler", subject)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := other.ClientLeaf("front-proxy-client", Subject{Name: "front-proxy-client"})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := func(p Pair) []byte {
		b, err := Kubeconfig("scheduler", "https://127.0.0.1:6443", "", ca.CertPEM(), p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	path := filepath.Join(dir, "scheduler.kubeconfig")
	if err := os.WriteFile(path, kubeconfig(scheduler.Pair()), 0o600); err != nil {
		t.Fatal(err)
	}
	old := scheduler.Pair()
	oldProxy := proxy.Pair()
	done, err := Renew(dir, nil, nil)
	if err != nil || len(done) != 2 {
		t.Fatalf("renewed %v, %v, want two", done, err)
	}
	for _, l := range []*Leaf{scheduler, proxy} {
		if !refresh(t, l) {
			t.Errorf("%s is not taken over", l.Name())
		}
	}
	if bytes.Equal(scheduler.Pair().CertPEM, old.CertPEM) || bytes.Equal(proxy.Pair().CertPEM, oldProxy.CertPEM) {
		t.Error("the certificates are the old ones")
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, kubeconfig(scheduler.Pair())) {
		t.Errorf("the kubeconfig has another certificate: %v", err)
	}
	for name, want := range map[string]string{
		"missing": `there is no certificate "missing"`,
	} {
		if _, err := Renew(dir, []string{name}, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("renew %s: %v, want %s", name, err, want)
		}
	}
}

// TestRenewAuthority: an authority that is renewed has the same key, what trusted it trusts it still, and it is the
// same cluster's.
func TestRenewAuthority(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	at := now.Add(-caLife + 20*day)
	old, err := open(dir, "ca", leafLife, func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	at = now
	leaf, err := old.ServerLeaf("apiserver", server())
	if err != nil {
		t.Fatal(err)
	}
	first := old.CertPEM()
	for range 2 {
		if _, err := Renew(dir, []string{"ca"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	renewed, err := Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	if left := renewed.Info().Expires.Sub(now); left < caLife-day {
		t.Errorf("the renewed one expires in %s", left)
	}
	if certs, err := Certificates(renewed.CertPEM()); err != nil || len(certs) != 2 {
		t.Errorf("the file has %d certificates, %v, want the new one and the first", len(certs), err)
	}
	if !bytes.Equal(OriginalAuthority(renewed.CertPEM()), first) || !bytes.Equal(OriginalAuthority(first), first) {
		t.Error("the first certificate is lost")
	}
	if !Follows(first, renewed.CertPEM(), nil) || !Follows(renewed.CertPEM(), first, nil) {
		t.Error("it is another authority")
	}
	other, err := Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	if Follows(first, append(bytes.Clone(first), other.CertPEM()...), nil) {
		t.Error("another authority's key is taken for the same")
	}
	if _, err := Renew(dir, []string{"apiserver"}, nil); err != nil {
		t.Fatal(err)
	}
	next, err := renewed.ServerLeaf("apiserver", server())
	if err != nil {
		t.Fatal(err)
	}
	if left := next.Certificate().Leaf.NotAfter.Sub(now); left < leafLife-day {
		t.Errorf("a certificate of the renewed authority lives for %s", left)
	}
	client, err := renewed.ClientLeaf("admin", Subject{Name: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ca := range []*Authority{old, renewed} {
		for _, l := range []*Leaf{leaf, next} {
			if err := handshake(ca, l, client); err != nil {
				t.Error(err)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Command etcd is the etcd of test environments: etcd's v3 API over HTTP without TLS, on loopback addresses only, over
// a store in a directory. `keelson envtest assets` installs it under the name etcd, and test harnesses (envtest of
// controller-runtime and those like it) start it as they start the real one. It is no etcd for clusters: it has one
// member, no certificates and no users.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"keelson/lib/parent"
	"keelson/store/embed"
	"keelson/store/etcdapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

// options are the flags that have an effect.
type options struct {
	dataDir string
	clients []string
	noSync  bool
	version bool
}

// flags returns etcd's flags. Harnesses look for names in the output of --help, one on each line.
func flags(o *options) *pflag.FlagSet {
	fl := pflag.NewFlagSet("etcd", pflag.ContinueOnError)
	fl.SortFlags = true
	fl.StringVar(&o.dataDir, "data-dir", "default.etcd", "`DIRECTORY` of the data")
	fl.StringSliceVar(&o.clients, "listen-client-urls", []string{"http://127.0.0.1:2379"},
		"serve clients at `URL`,..., each http and a loopback address")
	fl.BoolVar(&o.noSync, "unsafe-no-fsync", false, "write without waiting for the disk; a crash of the machine loses "+
		"writes")
	fl.BoolVar(&o.version, "version", false, "print the version and exit")
	fl.StringSlice("advertise-client-urls", nil, "without effect: there is one member")
	fl.StringSlice("listen-peer-urls", nil, "without effect: there is one member")
	fl.ParseErrorsAllowlist.UnknownFlags = true // what suites add for the real etcd
	return fl
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	fl := flags(&o)
	fl.SetOutput(out)
	if err := fl.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.version {
		_, err := fmt.Fprintf(out, "etcd Version: %s (keelson)\n", etcdapi.Version)
		return err
	}
	ctx, done, err := parent.Follow(ctx)
	if err != nil {
		return err
	}
	defer done()
	return serve(ctx, o)
}

// serve serves until ctx ends.
func serve(ctx context.Context, o options) error {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for _, text := range o.clients {
		at, err := loopback(text)
		if err != nil {
			return err
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
		if err != nil {
			return fmt.Errorf("listen for clients: %w", err)
		}
		listeners = append(listeners, l)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	st, err := embed.Open(embed.Options{Dir: o.dataDir, NoSync: o.noSync, Log: log})
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	api := etcdapi.New(st, etcdapi.Options{URL: o.clients[0], Dir: o.dataDir, Log: log})
	rpc := grpc.NewServer(etcdapi.ServerOptions()...)
	api.Register(rpc)
	web := &http.Server{Handler: handler(rpc, st), ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	web.Protocols.SetHTTP1(true)
	web.Protocols.SetUnencryptedHTTP2(true)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return api.Run(ctx) })
	for _, l := range listeners {
		group.Go(func() error {
			if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve clients: %w", err)
			}
			return nil
		})
	}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// health is what /health needs of the store.
type health interface {
	Health(ctx context.Context) error
}

// handler sends gRPC to rpc and answers what etcd answers over HTTP.
func handler(rpc *grpc.Server, st health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := st.Health(r.Context()); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"health":"false","reason":"STORE"}`))
			return
		}
		_, _ = w.Write([]byte(`{"health":"true","reason":""}`))
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"etcdserver":%q,"etcdcluster":%q,"storage":%q}`, etcdapi.Version, etcdapi.Version,
			etcdapi.Version[:strings.LastIndexByte(etcdapi.Version, '.')]+".0")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			rpc.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// loopback returns the address of a client URL. This program has no authentication, so it serves its own machine only.
func loopback(text string) (netip.AddrPort, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return netip.AddrPort{}, fmt.Errorf("--listen-client-urls %q is not of the form http://ADDRESS:PORT", text)
	}
	at, err := net.ResolveTCPAddr("tcp", u.Host)
	if err != nil || !at.IP.IsLoopback() {
		return netip.AddrPort{}, fmt.Errorf("--listen-client-urls %q: this etcd is for tests and serves loopback "+
			"addresses only", text)
	}
	return at.AddrPort(), nil
}

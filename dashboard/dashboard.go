// SPDX-License-Identifier: Apache-2.0

// Package dashboard serves the page on which people look at a cluster: on a loopback listener of its own, to whom a
// one-time link has let in. The page's programs come with the binary (page/, made by `make ui` of ui/). Everything else
// that it shows are answers of the API server, which this package fetches with the rights of the person who looks.
// cli's command dashboard calls it.
//
// What holds:
//  1. No answer without a key, except for the page itself, which says nothing about a cluster. Keys live in the page's
//     tab and travel in a header: the browser adds them to no request by itself.
//  2. No document of this origin comes from the cluster: what is passed on is data, whatever its server calls it, and
//     subresources that lead to pods and services (proxy) are refused.
//  3. A request's path is taken apart and put together again, so that API server and dashboard see the same one.
//  4. Nothing is read from the cluster while no page is open.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"k8s.io/client-go/rest"

	"keelson/client"
)

// Limits of the listener.
const (
	maxConnections = 128
	maxHeader      = 16 << 10
	headerTime     = 10 * time.Second
	idleTime       = 2 * time.Minute
	endTime        = 5 * time.Second // for requests that are under way when the listener ends
)

// Config says which cluster is shown, and to whom.
type Config struct {
	// Rest reaches the API server as the person who looks.
	Rest *rest.Config
	// Context and Namespace are those of the kubeconfig; the page shows them and begins with the namespace.
	Context   string
	Namespace string
	// ReadOnly refuses every request that would write.
	ReadOnly bool
	// Out is where a new link is printed when an old one was tried again.
	Out io.Writer
}

// Dashboard serves the page of one cluster.
type Dashboard struct {
	config Config
	door   *door
	server *upstream
	assets map[string]asset
}

// New makes a Dashboard. It does not contact the API server.
func New(config Config) (*Dashboard, error) {
	cl, err := client.Remote(config.Rest, "keelson-dashboard")
	if err != nil {
		return nil, err
	}
	server, err := newUpstream(cl.Config)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	assets, err := readAssets()
	if err != nil {
		return nil, err
	}
	return &Dashboard{
		config: config,
		door:   newDoor(),
		server: server,
		assets: assets,
	}, nil
}

// Link is a new link for a listener, which lets one tab in once. It replaces an earlier one.
func (d *Dashboard) Link(listener net.Listener) string {
	return linkTo(listener.Addr().String(), d.door.open())
}

func linkTo(host, code string) string { return "http://" + host + "/#/enter/" + code }

// Run serves the page until ctx ends, and returns when every request has ended.
func (d *Dashboard) Run(ctx context.Context, listener net.Listener) error {
	var serving sync.WaitGroup
	handler := d.Handler(listener.Addr().String())
	requests, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			serving.Add(1) // before Shutdown returns, so before Wait
			defer serving.Done()
			handler.ServeHTTP(w, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(netutil.LimitListener(listener, maxConnections)) }() // Shutdown ends it
	select {
	case err := <-ended:
		return fmt.Errorf("serve the page: %w", err)
	case <-ctx.Done():
	}
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer done()
	err := server.Shutdown(stop)
	if err != nil {
		err = server.Close()
	}
	serving.Wait()
	d.server.close()
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// Handler serves the page at host, an address with its port.
func (d *Dashboard) Handler(host string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /dashboard/v1/enter", d.enter)
	mux.HandleFunc("GET /dashboard/v1/session", d.keyed(d.session))
	mux.HandleFunc("GET /dashboard/v1/streams", d.keyed(d.streams))
	mux.HandleFunc("/dashboard/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "the dashboard has no such path")
	})
	for _, root := range roots {
		mux.HandleFunc("/"+root, d.keyed(d.pass))
		mux.HandleFunc("/"+root+"/", d.keyed(d.pass))
	}
	mux.HandleFunc("/", d.asset)
	return guarded(host, plainPaths(mux))
}

// SPDX-License-Identifier: Apache-2.0

// Package controllers runs Kubernetes' controllers: replicas, rollouts, garbage collection, namespaces, node health and
// others. cluster starts a Manager, in process or as a role of its own; table.go lists the controllers. A controller
// talks only to the API server, through a client with its own service account, and shares one set of informers with the
// others.
package controllers

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"keelson/api/gates"
	"keelson/client"
	"keelson/controllers/framework"
	"keelson/event"
	"keelson/pki"
)

// Config configures a Manager. Default sets the defaults.
type Config struct {
	// Clients returns a client that works as the service account kube-system/<name>, such as "replicaset-controller".
	// The name "" is system:kube-controller-manager, for the shared informers and discovery.
	Clients func(name string) *client.Client
	Marks   *event.Recorder // may be nil
	Log     *slog.Logger    // nil: discarded
	// ClusterName is used in messages.
	ClusterName string
	// RootCA is the CA bundle by which pods verify the API server; it is published in every namespace as
	// kube-root-ca.crt. nil, or empty: not published.
	RootCA framework.Bundle
	// TokenKey returns the key that signs the tokens in secrets of type kubernetes.io/service-account-token. nil: they
	// stay empty.
	TokenKey func() crypto.Signer
	// Authorities sign approved certificate requests of Kubernetes' signers: certificates.Signers.Authorities. nil:
	// nothing is signed.
	Authorities map[string]func() (*pki.Authority, error)
	Options
	// Metrics count the controllers' work; nil: nothing shows it.
	Metrics *Metrics
	// Gates are the enabled feature gates.
	Gates gates.On
	// Resync is the resync period of informers; 0, the default: never.
	Resync time.Duration
}

// Default returns c with the defaults set.
func (c Config) Default() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(client.NewClaims())
	}
	c.Options = c.Options.Default()
	return c
}

// Manager runs the configured controllers.
type Manager struct{ cfg Config }

// New checks cfg. It starts nothing.
func New(cfg Config) (*Manager, error) {
	if cfg.Clients == nil {
		return nil, errors.New("controllers: no clients given")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Manager{cfg.Default()}, nil
}

// Run starts the configured controllers, calls ready when all have synced their caches, and returns when all have
// ended: nil after ctx is done, or the first error.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	own := m.cfg.Clients("")
	shared := own.Informers(m.cfg.Resync, client.Scope{})
	var writers sync.WaitGroup // that write events
	defer writers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var built []named
	for _, row := range table {
		if !m.cfg.runs(row) || row.gate != nil && !row.gate(m.cfg.Gates) {
			continue
		}
		c, err := m.build(ctx, row, shared, &writers)
		if err != nil {
			return fmt.Errorf("build %s: %w", row.name, err)
		}
		built = append(built, named{c, row.name})
	}
	defer shared.Shutdown()
	err := runAll(ctx, built, shared.Start, ready)
	m.cfg.Log.Debug("controllers ended")
	return err
}

// named is a controller with the name of its row.
type named struct {
	framework.Controller
	name string
}

// runAll runs the controllers and then starts their informers, which stop with the first controller that fails. It
// calls ready once all controllers are ready, if they ever are, and returns when all have ended: nil after ctx is done,
// or the first error.
func runAll(ctx context.Context, all []named, start func(stop <-chan struct{}), ready func()) error {
	if len(all) == 0 {
		ready()
	}
	var waiting atomic.Int64
	waiting.Store(int64(len(all)))
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range all {
		up := sync.OnceFunc(func() {
			if waiting.Add(-1) == 0 {
				ready()
			}
		})
		group.Go(func() error {
			if err := c.Run(ctx, up); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			return nil
		})
	}
	start(ctx.Done())
	return group.Wait()
}

func (m *Manager) build(
	ctx context.Context, row row, shared *client.Informers, writers *sync.WaitGroup,
) (framework.Controller, error) {
	account := cmp.Or(row.account, row.name)
	own := m.cfg.Clients("")
	c := own
	if !row.useManagerIdentity {
		c = m.cfg.Clients(account)
	}
	events := c.Events(cmp.Or(row.source, account), "", m.cfg.Log)
	writers.Go(func() { _ = events.Run(ctx, func() {}) }) // it returns no error
	env := &framework.Env{
		Name:       account,
		Queue:      framework.Queue{Name: row.queue, Metrics: m.cfg.Metrics.queues},
		Workers:    m.cfg.workers(row),
		Client:     c,
		Shared:     shared,
		Marks:      m.cfg.Marks,
		Log:        m.cfg.Log,
		Events:     events,
		ListClient: own,
	}
	return row.build(env, m.cfg)
}

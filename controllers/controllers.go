// SPDX-License-Identifier: Apache-2.0

// Package controllers runs the loops that make the cluster what its objects say:
// replicas, rollouts, garbage, namespaces, node health. cluster starts a Manager,
// in process or as a role of its own; table.go lists what it runs. A controller
// talks to the API server only, through a client that acts as its own service
// account, and shares one set of informers with all others.
package controllers

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"keelson/api/gates"
	"keelson/client"
	"keelson/controllers/attachdetach"
	"keelson/controllers/cronjob"
	"keelson/controllers/endpointslice"
	"keelson/controllers/endpointslicemirroring"
	"keelson/controllers/framework"
	"keelson/controllers/job"
	"keelson/controllers/nodelifecycle"
	"keelson/controllers/podautoscaler"
	"keelson/controllers/podgc"
	"keelson/controllers/statefulset"
	"keelson/controllers/tainteviction"
	"keelson/controllers/ttlafterfinished"
	"keelson/lib/mark"
	"keelson/pki"
)

// Config says what a Manager works with. Default fills in the rest.
type Config struct {
	// Clients returns a client acting as the service account kube-system/<name>, such as "replicaset-controller".
	// For the name "" it acts as system:kube-controller-manager: that one feeds the shared informers and discovery.
	Clients func(name string) *client.Client
	Marks   *mark.Recorder // nil ok
	Log     *slog.Logger   // nil: discarded
	// ClusterName is for messages.
	ClusterName string
	// RootCA is the PEM that pods trust the API server by; it is published in every namespace as kube-root-ca.crt.
	// Empty: nothing is published.
	RootCA []byte
	// TokenKey signs the tokens in secrets of type kubernetes.io/service-account-token. nil: they stay empty.
	TokenKey crypto.Signer
	// Authorities sign approved certificate requests of Kubernetes' own signers: certificates.Signers.Authorities. nil: nobody does.
	Authorities map[string]func() (*pki.Authority, error)
	Options
	// Gates are those of Kubernetes' feature gates that are on.
	Gates gates.On
	// Resync makes informers redeliver all objects this often; 0, the default, never.
	Resync time.Duration
}

// Default returns c with its gaps filled.
func (c Config) Default() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Options = c.Options.Default()
	return c
}

// Collectors are the metrics of the controllers and of their queues in this process.
func Collectors() []prometheus.Collector {
	return slices.Concat(framework.Collectors(), job.Collectors(), cronjob.Collectors(), ttlafterfinished.Collectors(),
		endpointslice.Collectors(), endpointslicemirroring.Collectors(),
		nodelifecycle.Collectors(), podautoscaler.Collectors(), podgc.Collectors(), statefulset.Collectors(), tainteviction.Collectors(), attachdetach.Collectors())
}

// Manager runs the controllers that its configuration asks for.
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

// Run starts every controller that is asked for, calls ready when all have read the state of the cluster, and returns when all
// have ended: nil after ctx is done, or the first error.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	own := m.cfg.Clients("")
	shared := own.Informers(m.cfg.Resync, client.Scope{})
	var writers sync.WaitGroup // of events
	defer writers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	var up sync.WaitGroup
	for _, row := range table {
		if !m.cfg.runs(row) || row.gate != nil && !row.gate(m.cfg.Gates) {
			continue
		}
		c, err := m.build(ctx, row, shared, &writers)
		if err != nil {
			return fmt.Errorf("build %s: %w", row.name, err)
		}
		up.Add(1)
		group.Go(func() error {
			var once sync.Once
			err := c.Run(ctx, func() { once.Do(up.Done) })
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", row.name, err)
			}
			return nil
		})
	}
	shared.Start(ctx.Done())
	defer shared.Shutdown()
	go func() { // ends when all controllers are ready, or with the process when one never was
		up.Wait()
		ready()
	}()
	err := group.Wait()
	m.cfg.Log.Debug("controllers ended")
	return err
}

func (m *Manager) build(ctx context.Context, row row, shared *client.Informers, writers *sync.WaitGroup) (framework.Controller, error) {
	account := cmp.Or(row.account, row.name)
	own := m.cfg.Clients("")
	c := own
	if !row.boss {
		c = m.cfg.Clients(account)
	}
	events := c.Events(cmp.Or(row.source, account), "", m.cfg.Log)
	writers.Go(func() { _ = events.Run(ctx, func() {}) }) // it knows no error
	env := &framework.Env{
		Name: account, Queue: row.queue, Workers: m.cfg.workers(row), Client: c, Shared: shared, Marks: m.cfg.Marks, Log: m.cfg.Log,
		Events: events, Lists: own,
	}
	return row.build(env, m.cfg)
}

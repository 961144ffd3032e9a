// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/api/apiregistration"
	"keelson/api/kind"
)

const (
	// every is how often servers of others are probed; without any there is nothing to do.
	every = 30 * time.Second
	// sooner is when one that failed is probed again.
	sooner = 2 * time.Second
	atOnce = 8
)

// everything is the one key of the loop: APIServices are looked at together, and their servers probed at once.
type everything struct{}

// Run probes and explores the servers of others, and keeps APIServices for what this server serves, until ctx ends.
func (s *Services) Run(ctx context.Context) error {
	defer s.closeAll()
	s.Look()
	return s.loop.Run(ctx)
}

// look does what Run does, once, and tells when to look again.
func (s *Services) look(ctx context.Context, _ everything) (again time.Duration, err error) {
	if err := s.manage(ctx); err != nil && ctx.Err() == nil {
		s.config.Log.Warn("api services are looked at again", "err", err)
		again = sooner
	}
	switch healthy, some := s.probeAll(ctx); {
	case some && !healthy:
		again = sooner
	case some && again == 0:
		again = every
	}
	return again, nil
}

func (s *Services) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.closed {
		r.close()
	}
	s.closed = nil
	for _, r := range *s.remotes.Load() {
		r.close()
	}
}

// probeAll probes every remote, if there are some.
func (s *Services) probeAll(ctx context.Context) (healthy, some bool) {
	s.mu.Lock()
	for _, r := range s.closed {
		r.close()
	}
	s.closed = nil
	s.mu.Unlock()
	remotes := *s.remotes.Load()
	results := make(chan bool, len(remotes))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, r := range remotes {
		g.Go(func() error {
			results <- s.probe(ctx, r)
			return nil
		})
	}
	_ = g.Wait() // nothing fails there
	close(results)
	healthy = true
	for ok := range results {
		healthy = healthy && ok
	}
	return healthy, len(remotes) > 0
}

// probe looks at one remote and writes down what it saw.
func (s *Services) probe(ctx context.Context, r *remote) (healthy bool) {
	c := s.condition(ctx, r)
	if ctx.Err() != nil {
		return false
	}
	healthy = c.Status == v1.ConditionTrue
	if healthy {
		// Before the condition says that it can be used, discovery names it.
		f, err := r.explore(ctx)
		if err != nil {
			s.config.Log.Warn("aggregated server is not explored", "apiservice", r.service.Name, "err", err)
			healthy = false
		} else {
			s.note(r, f)
		}
	}
	if err := s.writeCondition(ctx, r.service, c); err != nil && ctx.Err() == nil {
		s.config.Log.Warn("condition of api service is not written", "apiservice", r.service.Name, "err", err)
		return false
	}
	return healthy
}

func (s *Services) note(r *remote, f *Found) {
	s.mu.Lock()
	same := sameFinding(s.found[r.service.Name], f)
	if !same && s.known[r.service.Name] != nil {
		s.found[r.service.Name] = f
	}
	s.mu.Unlock()
	if !same {
		s.config.Changed()
	}
}

var errStale = errors.New("the api service has changed")

func (s *Services) writeCondition(ctx context.Context, svc *v1.APIService, c v1.APIServiceCondition) error {
	_, _, _, err := s.config.Stored.Update(ctx, "", svc.Name, false, func(_ context.Context, current kind.Object) (kind.Object, error) {
		now, ok := current.(*v1.APIService)
		if !ok {
			return nil, fmt.Errorf("api service %s is a %T", svc.Name, current)
		}
		if now.UID != svc.UID || now.Spec.Service == nil {
			return nil, errStale
		}
		if have := apiregistration.Available(now); have != nil && have.Status == c.Status && have.Reason == c.Reason && have.Message == c.Message {
			return current, nil
		}
		if c.Status != v1.ConditionTrue {
			s.losses.WithLabelValues(svc.Name, c.Reason).Inc()
		}
		out := now.DeepCopy()
		apiregistration.SetCondition(out, c)
		return out, s.config.Owners.Update(current, out, "kube-apiserver")
	})
	if errors.Is(err, errStale) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

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
	"keelson/apiserver/objects"
)

const (
	// probeInterval is the interval of probes.
	probeInterval = 30 * time.Second
	// retryInterval is the wait before a failed server is probed again.
	retryInterval       = 2 * time.Second
	maxConcurrentProbes = 8
)

// allServices is the only key of the loop: one pass handles all APIServices and probes their servers in parallel.
type allServices struct{}

// Run probes and explores aggregated servers, and maintains the APIServices of this server's group versions, until ctx
// ends.
func (s *Services) Run(ctx context.Context) error {
	defer s.closeAll()
	s.Trigger()
	return s.loop.Run(ctx)
}

// sync runs one pass and returns the time until the next.
func (s *Services) sync(ctx context.Context, _ allServices) (requeueAfter time.Duration, err error) {
	if err := s.manage(ctx); err != nil && ctx.Err() == nil {
		s.config.Log.Warn("sync api services, will retry", "err", err)
		requeueAfter = retryInterval
	}
	switch healthy, some := s.probeAll(ctx); {
	case some && !healthy:
		requeueAfter = retryInterval
	case some && requeueAfter == 0:
		requeueAfter = probeInterval
	}
	return requeueAfter, nil
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

// probeAll probes every remote; some is false if there is none.
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
	g.SetLimit(maxConcurrentProbes)
	for _, r := range remotes {
		g.Go(func() error {
			results <- s.probe(ctx, r)
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	close(results)
	healthy = true
	for ok := range results {
		healthy = healthy && ok
	}
	return healthy, len(remotes) > 0
}

// probe checks one remote and writes its condition.
func (s *Services) probe(ctx context.Context, r *remote) (healthy bool) {
	condition := s.condition(ctx, r)
	if ctx.Err() != nil {
		return false
	}
	healthy = condition.Status == v1.ConditionTrue
	if healthy {
		// Discovery includes it before the condition becomes Available.
		f, err := r.fetchDiscovery(ctx)
		if err != nil {
			s.config.Log.Warn("read discovery of aggregated server", "apiservice", r.service.Name, "err", err)
			healthy = false
		} else {
			s.setDiscovery(r, f)
		}
		s.serve(r.service, condition)
	}
	if err := s.writeCondition(ctx, r.service, condition); err != nil && ctx.Err() == nil {
		s.config.Log.Warn("write condition of api service", "apiservice", r.service.Name, "err", err)
		return false
	}
	return healthy
}

// serve proxies requests to an available server before its condition says that it is available: a client that has read
// the condition may rely on it.
func (s *Services) serve(svc *v1.APIService, condition v1.APIServiceCondition) {
	s.mu.Lock()
	changed := false
	known := s.known[svc.Name]
	if known != nil && known.UID == svc.UID && !isAvailable(known) {
		known = known.DeepCopy()
		apiregistration.SetCondition(known, condition)
		s.known[svc.Name] = known
		changed = s.rebuildLocked()
	}
	s.mu.Unlock()
	if changed {
		s.config.Changed(s)
	}
}

func (s *Services) setDiscovery(r *remote, f *Discovery) {
	s.mu.Lock()
	same := sameDiscovery(s.discovered[r.service.Name], f)
	if !same && s.known[r.service.Name] != nil {
		s.discovered[r.service.Name] = f
	}
	s.mu.Unlock()
	if !same {
		s.config.Changed(s)
	}
}

var errStale = errors.New("the api service has changed")

func (s *Services) writeCondition(ctx context.Context, svc *v1.APIService, condition v1.APIServiceCondition) error {
	_, _, _, err := s.config.Stored.Update(ctx, "", svc.Name, false, objects.Replace(func(
		_ context.Context, current kind.Object,
	) (kind.Object, error) {
		now, ok := current.(*v1.APIService)
		if !ok {
			return nil, fmt.Errorf("api service %s is a %T", svc.Name, current)
		}
		if now.UID != svc.UID || (now.Spec.Service == nil) != (svc.Spec.Service == nil) {
			return nil, errStale
		}
		if hasCondition(now, condition) {
			return current, nil
		}
		if condition.Status != v1.ConditionTrue {
			s.unavailableTotal.WithLabelValues(svc.Name, condition.Reason).Inc()
		}
		out := now.DeepCopy()
		apiregistration.SetCondition(out, condition)
		return out, s.config.Owners.Update(current, out, "kube-apiserver")
	}))
	if errors.Is(err, errStale) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// hasCondition reports whether the condition Available of svc says the same as condition.
func hasCondition(svc *v1.APIService, condition v1.APIServiceCondition) bool {
	have := apiregistration.Available(svc)
	return have != nil && have.Status == condition.Status && have.Reason == condition.Reason &&
		have.Message == condition.Message
}

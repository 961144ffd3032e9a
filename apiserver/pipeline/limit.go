// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/fairness"
	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/lib/connlimit"
)

// Requests wait for a seat: so a burst of writes (a controller that creates hundreds of pods) is queued, and not
// rejected and retried a second later.
const (
	waitersPerSeat = 10
	maxWait        = 15 * time.Second
)

// seats limits concurrent requests of one kind.
type seats struct {
	inUse   chan struct{}
	waiting atomic.Int64
}

// acquire waits for a seat; false: too many wait already, or the wait was too long.
func (s *seats) acquire(ctx context.Context) bool {
	select {
	case s.inUse <- struct{}{}:
		return true
	default:
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > int64(waitersPerSeat*cap(s.inUse)) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	select {
	case s.inUse <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// limitInFlight queues or rejects requests when too many are running.
func limitInFlight(config *Config, next http.Handler) http.Handler {
	readGauge := config.Metrics.inflight.WithLabelValues("readOnly")
	writeGauge := config.Metrics.inflight.WithLabelValues("mutating")
	streams := connlimit.NewPlaces(config.MaxStreams)
	// A watch takes 8 kB, and a connection has room for a thousand.
	watches := connlimit.NewTenantPlaces(config.MaxTenantWatches)
	enter := config.inFlightLimiter()
	if config.Fairness != nil {
		enter = config.acquireSeats
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := From(r.Context())
		if rq.within != nil && !rq.LongRunning() {
			next.ServeHTTP(w, r)
			return
		}
		if rq.LongRunning() {
			limit := streams
			if rq.Verb == "watch" {
				limit = watches
			}
			owner := cmp.Or(rq.impersonator, rq.User).Owner()
			if !limit.Enter(owner) {
				tooMany(w, rq)
				return
			}
			defer limit.Leave(owner)
		}
		if rq.LongRunning() && rq.Verb != "watch" {
			next.ServeHTTP(w, r)
			return
		}
		if rq.LongRunning() && config.Fairness == nil {
			next.ServeHTTP(w, r)
			return
		}
		begin := time.Now()
		release := enter(w, r, rq)
		rq.Mark.Queue = time.Since(begin)
		if release == nil {
			tooMany(w, rq)
			return
		}
		defer release()
		if rq.LongRunning() { // a watch holds a seat until it has sent its initial events
			rq.releaseSeats = release
			next.ServeHTTP(w, r)
			return
		}
		gauge := writeGauge
		if rq.ReadOnly() {
			gauge = readGauge
		}
		gauge.Inc()
		defer gauge.Dec()
		next.ServeHTTP(w, r)
	})
}

func tooMany(w http.ResponseWriter, rq *Request) {
	rq.Failure = "too many requests"
	rq.terminated = true
	w.Header().Set("Retry-After", "1")
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}

// limiter admits a request; nil: it is rejected.
type limiter func(w http.ResponseWriter, r *http.Request, rq *Request) (release func())

// inFlightLimiter limits the numbers of reads and writes. Cluster administrators are exempt.
func (c *Config) inFlightLimiter() limiter {
	reads := &seats{inUse: make(chan struct{}, c.MaxReads)}
	writes := &seats{inUse: make(chan struct{}, c.MaxWrites)}
	return func(_ http.ResponseWriter, r *http.Request, rq *Request) func() {
		s := writes
		if rq.ReadOnly() {
			s = reads
		}
		if slices.Contains(rq.User.Groups, auth.Masters) {
			return func() {}
		}
		if !s.acquire(r.Context()) {
			return nil
		}
		return func() { <-s.inUse }
	}
}

// acquireSeats waits for a seat of the request's priority level.
func (c *Config) acquireSeats(w http.ResponseWriter, r *http.Request, rq *Request) func() {
	request := &fairness.Request{
		User:        rq.User.Name,
		Groups:      rq.User.Groups,
		Verb:        rq.Verb,
		IsResource:  rq.IsResource,
		Group:       rq.Group,
		Resource:    rq.Resource,
		Subresource: rq.Subresource,
		Namespace:   rq.Namespace,
		Path:        rq.Path,
		Cost:        1,
	}
	if c.Cost != nil {
		request.Cost = c.Cost(rq)
	}
	begin := time.Now()
	release, at, err := c.Fairness.Enter(r.Context(), request)
	rq.queued = time.Since(begin)
	if at.SchemaUID != "" {
		w.Header().Set("X-Kubernetes-Pf-Flowschema-Uid", at.SchemaUID)
		w.Header().Set("X-Kubernetes-Pf-Prioritylevel-Uid", at.LevelUID)
	}
	if at.SchemaUID != "" {
		c.Metrics.waited.WithLabelValues(at.Level, at.Schema, strconv.FormatBool(err == nil)).Observe(
			rq.queued.Seconds())
	}
	if err != nil {
		c.Metrics.rejected.WithLabelValues(at.Level, at.Schema, err.Error()).Inc()
		return nil
	}
	return release
}

// timeoutGrace is the additional time for a client to read the time-out response.
const timeoutGrace = 5 * time.Second

// deadline ends requests that are not long-running after Config.Timeout, or sooner with ?timeout=.
func deadline(c *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if From(r.Context()).LongRunning() {
			next.ServeHTTP(w, r)
			return
		}
		limit := c.Timeout
		if r.URL.RawQuery != "" {
			if value := r.URL.Query().Get("timeout"); value != "" {
				d, err := time.ParseDuration(value)
				if err != nil {
					wire.WriteError(w, r,
						apierrors.NewBadRequest("invalid timeout specified in the request URL - "+err.Error()))
					return
				}
				if d > 0 && d < limit {
					limit = d
				}
			}
		}
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		// A client that neither sends nor reads must not hold the handler longer. In-process requests have no deadlines
		// and no slow clients.
		// slow clients.
		out := http.NewResponseController(w)
		end := time.Now().Add(limit)
		if out.SetReadDeadline(end) == nil {
			_ = out.SetWriteDeadline(end.Add(timeoutGrace))          // a writer with the one method has the other
			defer func() { _ = out.SetWriteDeadline(time.Time{}) }() // the connection may be reused
		}
		next.ServeHTTP(w, r.WithContext(ctx))
		From(ctx).terminated = errors.Is(ctx.Err(), context.DeadlineExceeded)
	})
}

// limitBodySize lets a read beyond Config.MaxBody fail with *http.MaxBytesError. It does not apply to upgraded
// connections and proxies.
func limitBodySize(c *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer From(r.Context()).end() // gives back what the body took
		if r.Body != nil && r.Body != http.NoBody && !From(r.Context()).LongRunning() {
			r.Body = http.MaxBytesReader(w, r.Body, c.MaxBody)
		}
		next.ServeHTTP(w, r)
	})
}

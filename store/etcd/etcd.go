// SPDX-License-Identifier: Apache-2.0

// Package etcd is the store of clusters with several API servers: store.Store
// over an etcd cluster, through its v3 API. cluster opens it; the API server
// talks to it through the contract only. Keys and values are the same bytes as
// in store/embed.
//
// What the code relies on:
//
//  1. A key's revision is its ModRevision. Each write is one transaction of one
//     operation, so each has a revision of its own, as the contract asks.
//  2. Reads without a revision are linearizable: they see what any API server
//     has acknowledged before.
//  3. A watch of everything (prefix "") learns of every revision there is, so
//     that its reader, comparing with Revision, knows when it has seen all: that
//     works with every etcd, while answers to progress requests may overtake
//     events before 3.4.25 and 3.5.8.
//  4. A member lost, or the leader, is waited out: calls are repeated (retry.go).
//     etcd lost or without a leader for long is *store.UnavailableError, a full
//     one store.ErrNoSpace; a watch waits and goes on where it was, without a gap.
package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keelson/store"
)

// Options say where etcd is. Only Servers is required.
type Options struct {
	// Servers are client URLs of the members: https://10.0.0.1:2379.
	Servers []string
	TLS     *tls.Config // nil for http URLs
	Log     *slog.Logger
	// HistoryAge is for how long old revisions stay readable (default 5 minutes); below 0 history is left to somebody
	// else. Nothing is compacted while nothing is written.
	HistoryAge time.Duration
	// UsageEvery is how often etcd's size is read while something is written (default 1 minute).
	UsageEvery time.Duration
	// Patience bounds one call with its repetitions (default 10 s).
	Patience time.Duration
	dial     []grpc.DialOption // of tests
}

// Store implements store.Store.
type Store struct {
	client   *clientv3.Client
	servers  string
	log      *slog.Logger
	patience time.Duration

	life       sync.RWMutex // held for reading by every call
	background sync.WaitGroup
	done       chan struct{} // closed by Close
	closing    sync.Once

	seen    atomic.Int64  // latest revision in any answer
	cluster atomic.Uint64 // the cluster ID of the etcd that answered last
	fresh   fresh
	health  health
	usage   usage
}

// TLS reads the files of --etcd-cafile, --etcd-certfile and --etcd-keyfile; all empty: nil.
func TLS(caFile, certFile, keyFile string) (*tls.Config, error) {
	if caFile == "" && certFile == "" && keyFile == "" {
		return nil, nil // no TLS is an answer
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("etcd's CA: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd's CA: %s holds no certificate", caFile)
		}
	}
	if certFile != "" || keyFile != "" {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate for etcd: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Open connects to etcd and fails when none of the servers answers.
func Open(ctx context.Context, options Options) (*Store, error) {
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.HistoryAge == 0 {
		options.HistoryAge = 5 * time.Minute
	}
	if options.UsageEvery == 0 {
		options.UsageEvery = time.Minute
	}
	if options.Patience == 0 {
		options.Patience = 10 * time.Second
	}
	st := &Store{
		servers:  strings.Join(options.Servers, ","),
		log:      options.Log,
		patience: options.Patience,
		done:     make(chan struct{}),
	}
	var err error
	st.client, err = clientv3.New(clientv3.Config{
		Endpoints:            options.Servers,
		TLS:                  options.TLS,
		Logger:               zap.NewNop(),
		DialKeepAliveTime:    10 * time.Second, // etcd takes one per 5 s
		DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: append(options.dial, grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  100 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   2 * time.Second, // for two minutes otherwise a member that is back gets no request
			},
			MinConnectTimeout: 2 * time.Second,
		})),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd at %s: %w", st.servers, err)
	}
	st.fresh.ask = st.ask
	st.health.ask = func(ctx context.Context) error {
		_, err := st.Revision(ctx)
		return err
	}
	if _, err := st.Revision(ctx); err != nil {
		return nil, errors.Join(err, st.client.Close())
	}
	st.background.Go(func() { st.readUsageEvery(options.UsageEvery) })
	if options.HistoryAge > 0 {
		st.background.Go(func() { st.compactEvery(options.HistoryAge) })
	}
	return st, nil
}

// begin refuses work on a closed store or an ended context and bounds the call. end must be called.
func (s *Store) begin(ctx context.Context) (bounded context.Context, end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.life.RLock()
	select {
	case <-s.done:
		s.life.RUnlock()
		return nil, nil, store.ErrClosed
	default:
	}
	bounded, cancel := context.WithTimeout(ctx, s.patience)
	return bounded, func() {
		cancel()
		s.life.RUnlock()
	}, nil
}

// meaning translates an error of the client; ctx is the caller's, not the bounded one.
func (s *Store) meaning(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, rpctypes.ErrFutureRev):
		return store.ErrFuture
	case tooLarge(err):
		return fmt.Errorf("etcd at %s: %w: %w", s.servers, store.ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return store.ErrNoSpace // in etcd's words, which clients know
	case errors.Is(err, context.DeadlineExceeded):
		return &store.UnavailableError{Cause: fmt.Errorf("etcd at %s does not answer", s.servers)}
	case passing(err):
		return &store.UnavailableError{Cause: fmt.Errorf("etcd at %s: %w", s.servers, err)}
	}
	return fmt.Errorf("etcd at %s: %w", s.servers, err)
}

// tooLarge reports that etcd, or the client before it, refused a request for its size. The client has no error of its
// own for that.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(),
			"trying to send message larger than max")
}

// passing reports whether an error goes away by itself.
func passing(err error) bool {
	code := status.Code(err)
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Canceled:
		return true
	case codes.Unknown: // a member whose leader is gone passes on, without a code, that the time of a call is over
		text := status.Convert(err).Message()
		return text == context.DeadlineExceeded.Error() || text == context.Canceled.Error()
	}
	return false
}

func (s *Store) observe(h *etcdserverpb.ResponseHeader) int64 {
	rev := h.GetRevision()
	s.cluster.Store(h.GetClusterId())
	for {
		old := s.seen.Load()
		if rev <= old || s.seen.CompareAndSwap(old, rev) {
			return rev
		}
	}
}

// Cluster is the cluster ID of the etcd.
func (s *Store) Cluster() uint64 { return s.cluster.Load() }

// Health is nil if etcd has answered within healthAge, also when it is full (usage.go): deletions go on.
func (s *Store) Health(ctx context.Context) error { return s.health.get(ctx) }

// Size is that of the data base of one of the servers.
func (s *Store) Size(ctx context.Context) (int64, error) {
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	var st *clientv3.StatusResponse
	servers := s.client.Endpoints()
	next := 0
	if err := s.again(bounded, func(attempt context.Context) (err error) {
		st, err = s.client.Status(attempt, servers[next%len(servers)])
		next++
		return err
	}); err != nil {
		return 0, s.meaning(ctx, err)
	}
	return st.DbSize, nil
}

// Compact forgets history before rev.
func (s *Store) Compact(ctx context.Context, rev int64) error {
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = s.client.Compact(bounded, rev)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return s.meaning(ctx, err)
}

// compactEvery forgets, age after age, what was written before the last age. All API servers may do it.
func (s *Store) compactEvery(age time.Duration) {
	tick := time.NewTicker(age)
	defer tick.Stop()
	before := s.seen.Load()
	done := int64(0)
	for {
		select {
		case <-tick.C:
		case <-s.done:
			return
		}
		if before > done {
			if err := s.Compact(context.Background(), before); err != nil && !errors.Is(err, store.ErrClosed) {
				s.log.Error("cannot compact etcd's history", "rev", before, "err", err)
			} else {
				done = before
			}
		}
		before = s.seen.Load()
	}
}

// Close ends all watches and waits for calls under way. Closing twice is harmless.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.done)
		s.life.Lock()   // waits for calls under way, which patience bounds; later ones see done
		s.life.Unlock() //nolint:staticcheck // the barrier above
		s.background.Wait()
		if cerr := s.client.Close(); cerr != nil && !errors.Is(cerr, context.Canceled) {
			err = fmt.Errorf("close etcd client: %w", cerr)
		}
	})
	return err
}

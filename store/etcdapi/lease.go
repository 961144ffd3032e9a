// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"keelson/lib/signal"
	"keelson/store"
)

// leaseRoot is where leases are kept: <root><id> holds the seconds that it was granted for, <root><id>/<key> a sum of
// the value that the key was given under it. The sum is written before the key: after a crash between the two the key's
// value reports that it does not belong to the lease. As in etcd, all leases start over when the server starts.
const leaseRoot = "keelson/leases/"

const maxTTL = 9_000_000_000 // etcd's, seconds

// leases are all leases of a server.
type leases struct {
	s       *Server
	changed signal.Signal // the next expiry may be another
	loaded  chan struct{} // closed when the store's leases are known

	mu  sync.Mutex
	all map[int64]*lease
	of  map[string]hold
}

// hold is the lease that a key hangs on since revision rev.
type hold struct{ lease, rev int64 }

type lease struct {
	id, ttl int64 // seconds
	expires time.Time
	keys    map[string]string // with the sum of the value
}

func newLeases(s *Server) *leases {
	return &leases{
		s:       s,
		changed: signal.New(),
		loaded:  make(chan struct{}),
		all:     map[int64]*lease{},
		of:      map[string]hold{},
	}
}

func leaseKey(id int64) string { return fmt.Sprintf("%s%016x", leaseRoot, uint64(id)) }

func sumOf(value []byte) string {
	sum := sha256.Sum256(value)
	return string(sum[:])
}

// holding is the lease that key hangs on, 0 for none.
func (l *leases) holding(key string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[key].lease
}

// run loads the leases and lets them expire until ctx ends.
func (l *leases) run(ctx context.Context) error {
	for err := l.load(ctx); err != nil; err = l.load(ctx) {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // being stopped is no failure
		}
		l.s.o.Log.Warn("cannot read the leases of etcd's clients yet", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	close(l.loaded)
	for {
		id, at := l.next()
		wait := make(<-chan time.Time)
		var timer *time.Timer
		if id != 0 {
			timer = time.NewTimer(time.Until(at))
			wait = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.changed.C():
		case <-wait:
			l.expire(ctx, id)
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// expire revokes a lease whose time is over; when the store takes no writes it is tried again a while later.
func (l *leases) expire(ctx context.Context, id int64) {
	l.mu.Lock()
	le := l.all[id]
	over := le != nil && !time.Now().Before(le.expires)
	l.mu.Unlock()
	if !over {
		return
	}
	if _, err := l.revoke(ctx, id); err != nil && ctx.Err() == nil {
		l.s.o.Log.Error("cannot revoke a lease of etcd's clients", "lease", id, "err", err)
		l.mu.Lock()
		le.expires = time.Now().Add(time.Second)
		l.mu.Unlock()
	}
}

func (l *leases) load(ctx context.Context) error {
	now := time.Now()
	_, err := scan(ctx, l.s.st, span{leaseRoot, leaseRoot + "\xff"}, 0, func(kv store.KV) bool {
		hex, key, attached := strings.Cut(strings.TrimPrefix(kv.Key, leaseRoot), "/")
		id, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			return true // not one of ours
		}
		if !attached {
			ttl, _ := strconv.ParseInt(string(kv.Value), 10, 64)
			l.all[int64(id)] = &lease{
				id:      int64(id),
				ttl:     ttl,
				expires: now.Add(time.Duration(ttl) * time.Second),
				keys:    map[string]string{},
			}
		} else if le := l.all[int64(id)]; le != nil {
			le.keys[key] = string(kv.Value)
			l.of[key] = hold{lease: int64(id)}
		}
		return true
	})
	return err
}

// next is the lease that expires first; 0 when there is none.
func (l *leases) next() (int64, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first *lease
	for _, le := range l.all {
		if first == nil || le.expires.Before(first.expires) {
			first = le
		}
	}
	if first == nil {
		return 0, time.Time{}
	}
	return first.id, first.expires
}

// ready waits until the store's leases are known.
func (l *leases) ready(ctx context.Context) error {
	select {
	case <-l.loaded:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.s.done:
		return store.ErrClosed
	}
}

func (l *leases) grant(ctx context.Context, id, ttl int64) (*lease, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	if ttl > maxTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	ttl = max(ttl, 1)
	for drawn := id == 0; ; {
		if drawn {
			id = rand.Int64()
		}
		_, err := l.s.st.Create(ctx, leaseKey(id), strconv.AppendInt(nil, ttl, 10))
		if errors.Is(err, store.ErrExists) {
			if drawn {
				continue
			}
			return nil, rpctypes.ErrGRPCLeaseExist
		}
		if err != nil {
			return nil, err
		}
		break
	}
	le := &lease{
		id:      id,
		ttl:     ttl,
		expires: time.Now().Add(time.Duration(ttl) * time.Second),
		keys:    map[string]string{},
	}
	l.mu.Lock()
	l.all[id] = le
	l.mu.Unlock()
	l.changed.Notify()
	return le, nil
}

// attach writes down, before key gets value under lease id, that it will.
func (l *leases) attach(ctx context.Context, id int64, key string, value []byte) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	_, there := l.all[id]
	l.mu.Unlock()
	if !there {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	return set(ctx, l.s.st, leaseKey(id)+"/"+key, []byte(sumOf(value)))
}

// attached says that key has got value under lease id, 0 for none, at revision rev; what it hung on before is
// forgotten.
func (l *leases) attached(ctx context.Context, id int64, key string, value []byte, rev int64) error {
	l.mu.Lock()
	old := l.of[key].lease
	if l.of[key].rev > rev { // a later write was faster to say so
		l.mu.Unlock()
		return nil
	}
	if le := l.all[id]; le != nil {
		le.keys[key] = sumOf(value)
		l.of[key] = hold{id, rev}
	} else {
		delete(l.of, key)
	}
	if le := l.all[old]; le != nil && old != id {
		delete(le.keys, key)
	}
	l.mu.Unlock()
	if old == 0 || old == id {
		return nil
	}
	return unset(ctx, l.s.st, leaseKey(old)+"/"+key)
}

// revoke deletes what hangs on a lease, then the lease. false: there is no such lease.
func (l *leases) revoke(ctx context.Context, id int64) (bool, error) {
	if err := l.ready(ctx); err != nil {
		return false, err
	}
	l.mu.Lock()
	le := l.all[id]
	var keys []string
	if le != nil {
		for k := range le.keys {
			keys = append(keys, k)
		}
	}
	l.mu.Unlock()
	if le == nil {
		return false, nil
	}
	slices.Sort(keys)
	for _, key := range keys {
		if err := l.drop(ctx, le, key); err != nil {
			return true, err
		}
	}
	if err := unset(ctx, l.s.st, leaseKey(id)); err != nil {
		return true, err
	}
	l.mu.Lock()
	delete(l.all, id)
	l.mu.Unlock()
	l.changed.Notify()
	return true, nil
}

// drop deletes key, if it still hangs on le and holds what it was given under it, and the note of it.
func (l *leases) drop(ctx context.Context, le *lease, key string) error {
	for {
		l.mu.Lock()
		sum, still := le.keys[key]
		l.mu.Unlock()
		if !still {
			break
		}
		kv, _, err := l.s.st.Get(ctx, key, 0)
		if err == nil && sumOf(kv.Value) == sum {
			_, _, err = l.s.st.Delete(ctx, key, kv.Revision)
		}
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) {
			continue // it has just changed: look again
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		break
	}
	l.mu.Lock()
	delete(le.keys, key)
	if l.of[key].lease == le.id {
		delete(l.of, key)
	}
	l.mu.Unlock()
	return unset(ctx, l.s.st, leaseKey(le.id)+"/"+key)
}

// set gives key a value, whatever it had.
func set(ctx context.Context, st store.Store, key string, value []byte) error {
	for {
		cur, _, err := st.Get(ctx, key, 0)
		switch {
		case err == nil && string(cur.Value) == string(value):
			return nil
		case err == nil:
			_, err = st.Update(ctx, key, value, cur.Revision)
		case errors.Is(err, store.ErrNotFound):
			_, err = st.Create(ctx, key, value)
		}
		if !refused(err) {
			return err
		}
	}
}

// unset deletes key; that it is not there is fine.
func unset(ctx context.Context, st store.Store, key string) error {
	if _, _, err := st.Delete(ctx, key, 0); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

type leaseServer struct {
	pb.UnimplementedLeaseServer
	l *leases
}

func (s *leaseServer) header(ctx context.Context) (*pb.ResponseHeader, error) {
	rev, err := s.l.s.st.Revision(ctx)
	return header(rev), answer(err)
}

// LeaseGrant is part of the Lease service.
func (s *leaseServer) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	le, err := s.l.grant(ctx, r.ID, r.TTL)
	if err != nil {
		return nil, answer(err)
	}
	h, err := s.header(ctx)
	if err != nil {
		return nil, err
	}
	return &pb.LeaseGrantResponse{Header: h, ID: le.id, TTL: le.ttl}, nil
}

// LeaseRevoke is part of the Lease service.
func (s *leaseServer) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	there, err := s.l.revoke(ctx, r.ID)
	if err != nil {
		return nil, answer(err)
	}
	if !there {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	h, err := s.header(ctx)
	if err != nil {
		return nil, err
	}
	return &pb.LeaseRevokeResponse{Header: h}, nil
}

// LeaseKeepAlive is part of the Lease service. A lease that is not there has a TTL of 0.
func (s *leaseServer) LeaseKeepAlive(
	g grpc.BidiStreamingServer[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse],
) error {
	for {
		request, err := g.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client is gone
		}
		if err := s.l.ready(g.Context()); err != nil {
			return answer(err)
		}
		ttl := int64(0)
		s.l.mu.Lock()
		if le := s.l.all[request.ID]; le != nil {
			le.expires = time.Now().Add(time.Duration(le.ttl) * time.Second)
			ttl = le.ttl
		}
		s.l.mu.Unlock()
		h, err := s.header(g.Context())
		if err != nil {
			return err
		}
		if err := g.Send(&pb.LeaseKeepAliveResponse{Header: h, ID: request.ID, TTL: ttl}); err != nil {
			return err
		}
	}
}

// LeaseTimeToLive is part of the Lease service. A lease that is not there has a TTL of -1.
func (s *leaseServer) LeaseTimeToLive(
	ctx context.Context, request *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	if err := s.l.ready(ctx); err != nil {
		return nil, answer(err)
	}
	out := &pb.LeaseTimeToLiveResponse{ID: request.ID, TTL: -1}
	s.l.mu.Lock()
	if le := s.l.all[request.ID]; le != nil {
		out.TTL = max(int64(time.Until(le.expires).Seconds()), 0)
		out.GrantedTTL = le.ttl
		for key := range le.keys {
			if request.Keys {
				out.Keys = append(out.Keys, []byte(key))
			}
		}
	}
	s.l.mu.Unlock()
	slices.SortFunc(out.Keys, slices.Compare)
	var err error
	out.Header, err = s.header(ctx)
	return out, err
}

// LeaseLeases is part of the Lease service.
func (s *leaseServer) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if err := s.l.ready(ctx); err != nil {
		return nil, answer(err)
	}
	out := &pb.LeaseLeasesResponse{}
	s.l.mu.Lock()
	for id := range s.l.all {
		out.Leases = append(out.Leases, &pb.LeaseStatus{ID: id})
	}
	s.l.mu.Unlock()
	slices.SortFunc(out.Leases, func(a, b *pb.LeaseStatus) int { return int(max(min(a.ID-b.ID, 1), -1)) })
	var err error
	out.Header, err = s.header(ctx)
	return out, err
}

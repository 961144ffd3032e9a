// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"errors"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"keelson/store"
)

type kv struct {
	pb.UnimplementedKVServer
	st store.Store
}

// span is etcd's [key, end): end empty means key alone, "\x00" everything from key on.
type span struct{ key, end string }

func (s span) single() bool { return s.end == "" }

func (s span) holds(key string) bool {
	if s.single() {
		return key == s.key
	}
	return key >= s.key && (s.end == "\x00" || key < s.end)
}

// prefix is a prefix of every key in the span.
func (s span) prefix() string {
	if s.single() {
		return s.key
	}
	n := 0
	for n < len(s.key) && n < len(s.end) && s.key[n] == s.end[n] {
		n++
	}
	if n+1 == len(s.key) && n+1 == len(s.end) && s.key[n]+1 == s.end[n] {
		n++ // the span is just what begins with key
	}
	if s.end == "\x00" {
		return ""
	}
	return s.key[:n]
}

// exact tells whether the span is all that begins with its prefix.
func (s span) exact() bool { return !s.single() && s.prefix() == s.key }

// scan walks the keys of a span at revision rev (0: now) until f is false, and returns the revision read at.
func scan(ctx context.Context, st store.Reader, s span, rev int64, f func(store.KV) bool) (int64, error) {
	const page = 1000
	r := store.Range{Prefix: s.prefix(), From: max(s.key, s.prefix()), Revision: rev, Limit: page}
	for {
		p, err := st.List(ctx, r)
		if err != nil {
			return 0, err
		}
		r.Revision = p.Revision
		for _, kv := range p.Items {
			if !s.holds(kv.Key) && kv.Key >= s.key || !f(kv) {
				return p.Revision, nil
			}
		}
		if !p.More {
			return p.Revision, nil
		}
		r.From = p.Items[len(p.Items)-1].Key + "\x00"
	}
}

// Range is part of the KV service.
func (k *kv) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return read(ctx, k.st, r, r.Revision)
}

func read(ctx context.Context, st store.Reader, r *pb.RangeRequest, rev int64) (*pb.RangeResponse, error) {
	switch {
	case len(r.Key) == 0:
		return nil, rpctypes.ErrGRPCEmptyKey
	case r.MinModRevision|r.MaxModRevision|r.MinCreateRevision|r.MaxCreateRevision != 0:
		return nil, unimplemented("ranges by revision of the key")
	case r.SortOrder == pb.RangeRequest_DESCEND, r.SortOrder == pb.RangeRequest_ASCEND && r.SortTarget != pb.RangeRequest_KEY:
		return nil, unimplemented("answers come in the order of keys")
	}
	s := span{string(r.Key), string(r.RangeEnd)}
	if s.single() {
		return readOne(ctx, st, r, rev)
	}
	out := &pb.RangeResponse{}
	latest, err := st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	if s.exact() && r.Limit > 0 { // the store counts
		p, err := st.List(ctx, store.Range{Prefix: s.key, Revision: rev, Limit: int(r.Limit)})
		if err != nil {
			return nil, answer(err)
		}
		for _, kv := range p.Items {
			out.Kvs = append(out.Kvs, shown(kv, r))
		}
		out.More, out.Count = p.More, int64(len(p.Items))+p.Remaining
		if r.CountOnly {
			out.Kvs, out.More = nil, false
		}
		out.Header = header(max(latest, p.Revision))
		return out, nil
	}
	at, err := scan(ctx, st, s, rev, func(kv store.KV) bool {
		out.Count++
		if r.Limit > 0 && int64(len(out.Kvs)) >= r.Limit {
			out.More = true
		} else if !r.CountOnly {
			out.Kvs = append(out.Kvs, shown(kv, r))
		}
		return true
	})
	if err != nil {
		return nil, answer(err)
	}
	out.Header = header(max(latest, at))
	return out, nil
}

func shown(kv store.KV, r *pb.RangeRequest) *mvccpb.KeyValue {
	out := toEtcd(kv)
	if r.KeysOnly {
		out.Value = nil
	}
	return out
}

func readOne(ctx context.Context, st store.Reader, r *pb.RangeRequest, rev int64) (*pb.RangeResponse, error) {
	key := string(r.Key)
	impossible := strings.IndexByte(key, 0) >= 0
	if impossible { // the revision may be gone nevertheless
		key = "/"
	}
	got, latest, err := st.Get(ctx, key, rev)
	if errors.Is(err, store.ErrNotFound) || err == nil && impossible {
		return &pb.RangeResponse{Header: header(latest)}, nil
	}
	if err != nil {
		return nil, answer(err)
	}
	out := &pb.RangeResponse{Header: header(latest), Count: 1}
	if !r.CountOnly {
		out.Kvs = append(out.Kvs, shown(got, r))
	}
	return out, nil
}

// Compact is part of the KV service.
func (k *kv) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	rev, err := k.st.Revision(ctx)
	if err == nil {
		err = k.st.Compact(ctx, r.Revision)
	}
	if err != nil {
		return nil, answer(err)
	}
	return &pb.CompactionResponse{Header: header(rev)}, nil
}

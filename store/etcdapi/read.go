// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"keelson/store"
)

type kv struct {
	pb.UnimplementedKVServer
	s  *Server
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

// exact reports whether the span is all that begins with its prefix.
func (s span) exact() bool { return !s.single() && s.prefix() == s.key }

// scan walks the keys of a span at revision rev (0: now) until f is false, and returns the revision read at.
func scan(ctx context.Context, st store.Reader, s span, rev int64, f func(store.KV) bool) (int64, error) {
	const page = 1000
	rng := store.Range{
		Prefix:   s.prefix(),
		From:     max(s.key, s.prefix()),
		Revision: rev,
		Limit:    page,
		NoCount:  true,
	}
	for {
		p, err := st.List(ctx, rng)
		if err != nil {
			return 0, err
		}
		rng.Revision = p.Revision
		for _, kv := range p.Items {
			if !s.holds(kv.Key) && kv.Key >= s.key || !f(kv) {
				return p.Revision, nil
			}
		}
		if !p.More {
			return p.Revision, nil
		}
		rng.From = p.Items[len(p.Items)-1].Key + "\x00"
	}
}

// Range is part of the KV service.
func (k *kv) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return k.read(ctx, r, r.Revision)
}

func (k *kv) read(ctx context.Context, rangeRequest *pb.RangeRequest, rev int64) (*pb.RangeResponse, error) {
	if len(rangeRequest.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	s := span{string(rangeRequest.Key), string(rangeRequest.RangeEnd)}
	if s.single() {
		return k.readOne(ctx, rangeRequest, rev)
	}
	latest, err := k.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	out := &pb.RangeResponse{}
	var at int64
	switch {
	case picky(rangeRequest):
		at, err = k.pick(ctx, s, rangeRequest, rev, out)
	case s.exact() && rangeRequest.Limit > 0: // the store counts
		at, err = k.readPage(ctx, rangeRequest, rev, out)
	default:
		at, err = scan(ctx, k.st, s, rev, func(kv store.KV) bool {
			out.Count++
			if rangeRequest.Limit > 0 && int64(len(out.Kvs)) >= rangeRequest.Limit {
				out.More = true
			} else if !rangeRequest.CountOnly {
				out.Kvs = append(out.Kvs, k.shown(kv, rangeRequest))
			}
			return true
		})
	}
	if err != nil {
		return nil, answer(err)
	}
	out.Header = header(max(latest, at))
	return out, nil
}

// streamed is how large a part of a stream is, but for its last key.
const streamed = 1 << 20

// RangeStream is part of the KV service: a range in parts, as of one revision, so that neither side holds all of it at
// once. As in etcd only the last part has a header, a count, and reports whether there is more.
func (k *kv) RangeStream(rangeRequest *pb.RangeRequest, to pb.KV_RangeStreamServer) error {
	send := func(part *pb.RangeResponse) error { return to.Send(&pb.RangeStreamResponse{RangeResponse: part}) }
	s := span{string(rangeRequest.Key), string(rangeRequest.RangeEnd)}
	switch {
	case picky(rangeRequest):
		return unimplemented("a stream in another order, or of some revisions")
	case s.single(), rangeRequest.Limit > 0, rangeRequest.CountOnly: // so little that one part will do
		out, err := k.Range(to.Context(), rangeRequest)
		if err != nil {
			return err
		}
		return send(out)
	}
	latest, err := k.st.Revision(to.Context())
	if err != nil {
		return answer(err)
	}
	part := &pb.RangeResponse{}
	size := 0
	count := int64(0)
	var broken error
	at, err := scan(to.Context(), k.st, s, rangeRequest.Revision, func(kv store.KV) bool {
		if size >= streamed {
			if broken = send(part); broken != nil {
				return false
			}
			part = &pb.RangeResponse{}
			size = 0
		}
		e := k.shown(kv, rangeRequest)
		part.Kvs = append(part.Kvs, e)
		size += len(e.Key) + len(e.Value) + 64
		count++
		return true
	})
	if err != nil {
		return answer(err)
	}
	if broken != nil {
		return broken
	}
	part.Header = header(max(latest, at))
	part.Count = count
	return send(part)
}

func (k *kv) readPage(ctx context.Context, r *pb.RangeRequest, rev int64, out *pb.RangeResponse) (int64, error) {
	page, err := k.st.List(ctx, store.Range{Prefix: string(r.Key), Revision: rev, Limit: int(r.Limit)})
	if err != nil {
		return 0, err
	}
	out.Count = int64(len(page.Items)) + page.Remaining
	if !r.CountOnly {
		out.More = page.More
		for _, kv := range page.Items {
			out.Kvs = append(out.Kvs, k.shown(kv, r))
		}
	}
	return page.Revision, nil
}

// picky reports whether all of the span must be read before the first key is known.
func picky(r *pb.RangeRequest) bool {
	return r.MinModRevision|r.MaxModRevision|r.MinCreateRevision|r.MaxCreateRevision != 0 ||
		r.SortOrder == pb.RangeRequest_DESCEND ||
		r.SortOrder == pb.RangeRequest_ASCEND && r.SortTarget != pb.RangeRequest_KEY
}

// pick filters and sorts. As in etcd, what is filtered away counts.
func (k *kv) pick(
	ctx context.Context, s span, rangeRequest *pb.RangeRequest, rev int64, out *pb.RangeResponse,
) (int64, error) {
	within := func(n, least, most int64) bool { return (least == 0 || n >= least) && (most == 0 || n <= most) }
	var all []*mvccpb.KeyValue
	at, err := scan(ctx, k.st, s, rev, func(kv store.KV) bool {
		out.Count++
		e := k.s.open(kv)
		if within(e.ModRevision, rangeRequest.MinModRevision, rangeRequest.MaxModRevision) &&
			within(e.CreateRevision, rangeRequest.MinCreateRevision,
				rangeRequest.MaxCreateRevision) {
			all = append(all, e)
		}
		return true
	})
	if err != nil || rangeRequest.CountOnly {
		return at, err
	}
	slices.SortStableFunc(all, func(a, b *mvccpb.KeyValue) int {
		n := 0
		switch rangeRequest.SortTarget {
		case pb.RangeRequest_VERSION:
			n = cmp.Compare(a.Version, b.Version)
		case pb.RangeRequest_CREATE:
			n = cmp.Compare(a.CreateRevision, b.CreateRevision)
		case pb.RangeRequest_MOD:
			n = cmp.Compare(a.ModRevision, b.ModRevision)
		case pb.RangeRequest_VALUE:
			n = bytes.Compare(a.Value, b.Value)
		default:
			n = bytes.Compare(a.Key, b.Key)
		}
		if rangeRequest.SortOrder == pb.RangeRequest_DESCEND {
			return -n
		}
		return n
	})
	if rangeRequest.Limit > 0 && int64(len(all)) > rangeRequest.Limit {
		all = all[:rangeRequest.Limit]
		out.More = true
	}
	for _, e := range all {
		if rangeRequest.KeysOnly {
			e.Value = nil
		}
	}
	out.Kvs = all
	return at, nil
}

func (k *kv) shown(kv store.KV, r *pb.RangeRequest) *mvccpb.KeyValue {
	out := k.s.open(kv)
	if r.KeysOnly {
		out.Value = nil
	}
	return out
}

func (k *kv) readOne(ctx context.Context, rangeRequest *pb.RangeRequest, rev int64) (*pb.RangeResponse, error) {
	key := string(rangeRequest.Key)
	impossible := strings.IndexByte(key, 0) >= 0
	if impossible { // the revision may be gone nevertheless
		key = "/"
	}
	got, latest, err := k.st.Get(ctx, key, rev)
	if errors.Is(err, store.ErrNotFound) || err == nil && impossible {
		return &pb.RangeResponse{Header: header(latest)}, nil
	}
	if err != nil {
		return nil, answer(err)
	}
	out := &pb.RangeResponse{Header: header(latest), Count: 1}
	if !rangeRequest.CountOnly {
		out.Kvs = append(out.Kvs, k.shown(got, rangeRequest))
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

// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"errors"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keelson/store"
)

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case strings.IndexByte(string(r.Key), 0) >= 0:
		return status.Errorf(codes.InvalidArgument, "keelson: key %q: keys hold no zero byte", r.Key)
	case r.Lease != 0:
		return unimplemented("leases")
	case r.IgnoreValue, r.IgnoreLease:
		return unimplemented("puts that keep a part of the key")
	}
	return nil
}

// Put is part of the KV service.
func (k *kv) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	key := string(r.Key)
	for {
		cur, _, err := k.st.Get(ctx, key, 0)
		var w store.Written
		switch {
		case err == nil:
			w, err = k.st.Update(ctx, key, r.Value, cur.Revision)
		case errors.Is(err, store.ErrNotFound):
			w, err = k.st.Create(ctx, key, r.Value)
		}
		if refused(err) { // somebody was faster: look again
			continue
		}
		if err != nil {
			return nil, answer(err)
		}
		out := &pb.PutResponse{Header: header(w.Revision)}
		if r.PrevKv && cur.Revision != 0 {
			out.PrevKv = toEtcd(cur)
		}
		return out, nil
	}
}

func refused(err error) bool {
	var c *store.ConflictError
	return errors.As(err, &c) || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound)
}

// DeleteRange is part of the KV service.
func (k *kv) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if len(r.RangeEnd) > 0 {
		return nil, unimplemented("each deletion is a revision of its own: delete key by key")
	}
	return k.remove(ctx, r, 0)
}

func (k *kv) remove(ctx context.Context, r *pb.DeleteRangeRequest, expected int64) (*pb.DeleteRangeResponse, error) {
	old, w, err := k.st.Delete(ctx, string(r.Key), expected)
	if errors.Is(err, store.ErrNotFound) && expected == 0 {
		rev, err := k.st.Revision(ctx)
		return &pb.DeleteRangeResponse{Header: header(rev)}, answer(err)
	}
	if err != nil {
		return nil, err // the caller knows refusals
	}
	out := &pb.DeleteRangeResponse{Header: header(w.Revision), Deleted: 1}
	if r.PrevKv {
		out.PrevKvs = append(out.PrevKvs, toEtcd(old))
	}
	return out, nil
}

// condition is the comparison that a write may stand under: the key is at revision rev, absent (0), or there (any).
type condition struct {
	key string
	rev int64
	any bool
}

// conditionOf understands comparisons of one key's revisions.
func conditionOf(c *pb.Compare) (condition, bool) {
	out := condition{key: string(c.Key)}
	if len(c.RangeEnd) > 0 {
		return out, false
	}
	var n int64
	switch u := c.TargetUnion.(type) {
	case *pb.Compare_ModRevision:
		if out.rev = u.ModRevision; c.Result == pb.Compare_EQUAL {
			return out, out.rev >= 0
		}
		n = u.ModRevision
	case *pb.Compare_CreateRevision:
		n = u.CreateRevision
	case *pb.Compare_Version:
		n = u.Version
	default:
		return out, false
	}
	out.rev = 0
	out.any = c.Result == pb.Compare_GREATER || c.Result == pb.Compare_NOT_EQUAL
	return out, n == 0 && (out.any || c.Result == pb.Compare_EQUAL)
}

// Txn is part of the KV service.
func (k *kv) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if onlyReads(r.Success) && onlyReads(r.Failure) {
		return k.readTxn(ctx, r)
	}
	const why = "transactions of more than one write under one condition on the same key"
	if len(r.Compare) > 1 || len(r.Success) != 1 || !onlyReads(r.Failure) {
		return nil, unimplemented(why)
	}
	if len(r.Compare) == 0 {
		return k.unconditional(ctx, r.Success[0])
	}
	c, ok := conditionOf(r.Compare[0])
	if !ok {
		return nil, unimplemented("writes under this comparison")
	}
	put, del := r.Success[0].GetRequestPut(), r.Success[0].GetRequestDeleteRange()
	out := &pb.TxnResponse{Succeeded: true}
	var err error
	switch {
	case put != nil && string(put.Key) == c.key && !put.PrevKv:
		err = k.putIf(ctx, put, c, out)
	case del != nil && len(del.RangeEnd) == 0 && string(del.Key) == c.key && (c.any || c.rev > 0):
		var d *pb.DeleteRangeResponse
		if d, err = k.removeIf(ctx, del, c); err == nil {
			out.Header = d.Header
			out.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: d}}}
		}
	default:
		return nil, unimplemented(why)
	}
	if refused(err) {
		return k.reads(ctx, r.Failure, false)
	}
	if err != nil {
		return nil, answer(err)
	}
	return out, nil
}

func (k *kv) putIf(ctx context.Context, r *pb.PutRequest, c condition, out *pb.TxnResponse) error {
	if err := checkPut(r); err != nil {
		return err
	}
	var w store.Written
	var err error
	switch {
	case c.any:
		cur, _, gerr := k.st.Get(ctx, c.key, 0)
		if gerr != nil {
			return gerr
		}
		w, err = k.st.Update(ctx, c.key, r.Value, cur.Revision)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) {
			return k.putIf(ctx, r, c, out) // it is still there, only newer
		}
	case c.rev == 0:
		w, err = k.st.Create(ctx, c.key, r.Value)
	default:
		w, err = k.st.Update(ctx, c.key, r.Value, c.rev)
	}
	out.Header = header(w.Revision)
	out.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: out.Header}}}}
	return err
}

func (k *kv) removeIf(ctx context.Context, r *pb.DeleteRangeRequest, c condition) (*pb.DeleteRangeResponse, error) {
	if !c.any {
		return k.remove(ctx, r, c.rev)
	}
	d, err := k.remove(ctx, r, 0)
	if err == nil && d.Deleted == 0 {
		return nil, store.ErrNotFound
	}
	return d, err
}

func (k *kv) unconditional(ctx context.Context, op *pb.RequestOp) (*pb.TxnResponse, error) {
	out := &pb.TxnResponse{Succeeded: true}
	switch {
	case op.GetRequestPut() != nil:
		r, err := k.Put(ctx, op.GetRequestPut())
		if err != nil {
			return nil, err
		}
		out.Header = r.Header
		out.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{ResponsePut: r}}}
	case op.GetRequestDeleteRange() != nil:
		r, err := k.DeleteRange(ctx, op.GetRequestDeleteRange())
		if err != nil {
			return nil, answer(err)
		}
		out.Header = r.Header
		out.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: r}}}
	default:
		return nil, unimplemented("nested transactions")
	}
	return out, nil
}

func onlyReads(ops []*pb.RequestOp) bool {
	for _, op := range ops {
		if op.GetRequestRange() == nil {
			return false
		}
	}
	return true
}

// readTxn compares and reads at one revision.
func (k *kv) readTxn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	rev, err := k.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	for _, cmp := range r.Compare {
		c, ok := conditionOf(cmp)
		if !ok {
			return nil, unimplemented("this comparison")
		}
		cur, _, err := k.st.Get(ctx, c.key, rev)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, answer(err)
		}
		if c.any != (cur.Revision > 0) && c.any || !c.any && cur.Revision != c.rev {
			return k.readsAt(ctx, r.Failure, false, rev)
		}
	}
	return k.readsAt(ctx, r.Success, true, rev)
}

func (k *kv) reads(ctx context.Context, ops []*pb.RequestOp, succeeded bool) (*pb.TxnResponse, error) {
	rev, err := k.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	return k.readsAt(ctx, ops, succeeded, rev)
}

func (k *kv) readsAt(ctx context.Context, ops []*pb.RequestOp, succeeded bool, rev int64) (*pb.TxnResponse, error) {
	out := &pb.TxnResponse{Header: header(rev), Succeeded: succeeded}
	for _, op := range ops {
		r := op.GetRequestRange()
		at := r.Revision
		if at == 0 {
			at = rev
		}
		got, err := read(ctx, k.st, r, at)
		if err != nil {
			return nil, err
		}
		out.Responses = append(out.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: got}})
	}
	return out, nil
}

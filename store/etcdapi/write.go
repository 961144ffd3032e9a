// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"errors"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
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
	case r.IgnoreValue && len(r.Value) > 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

// refused reports that a write met another version of the key than it expected.
func refused(err error) bool {
	var c *store.ConflictError
	return errors.As(err, &c) || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound)
}

// get is key at revision rev (0: now), and the store's revision; a zero revision of the key means that it is not there.
func (k *kv) get(ctx context.Context, key string, rev int64) (store.KV, int64, error) {
	if key == "" || strings.IndexByte(key, 0) >= 0 {
		latest, err := k.st.Revision(ctx)
		return store.KV{Key: key}, latest, err
	}
	cur, latest, err := k.st.Get(ctx, key, rev)
	if errors.Is(err, store.ErrNotFound) {
		return store.KV{Key: key}, latest, nil
	}
	return cur, latest, err
}

// Put is part of the KV service.
func (k *kv) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	for {
		cur, _, err := k.get(ctx, string(r.Key), 0)
		var out *pb.PutResponse
		if err == nil {
			out, err = k.put(ctx, r, cur)
		}
		if refused(err) { // somebody was faster: look again
			continue
		}
		return out, answer(err)
	}
}

// put writes the key if it still is as in cur.
func (k *kv) put(ctx context.Context, putRequest *pb.PutRequest, cur store.KV) (*pb.PutResponse, error) {
	was := k.s.open(cur)
	value := putRequest.Value
	lease := putRequest.Lease
	if putRequest.IgnoreValue || putRequest.IgnoreLease {
		if cur.Revision == 0 {
			return nil, rpctypes.ErrGRPCKeyNotFound
		}
		if putRequest.IgnoreValue {
			value = was.Value
		}
		if putRequest.IgnoreLease {
			lease = was.Lease
		}
	}
	if lease != 0 {
		if err := k.s.leases.attach(ctx, lease, cur.Key, value); err != nil {
			return nil, err
		}
	}
	var written store.Written
	var err error
	if cur.Revision == 0 {
		written, err = k.st.Create(ctx, cur.Key, value)
	} else {
		written, err = k.st.Update(ctx, cur.Key, value, cur.Revision)
	}
	if err != nil {
		return nil, err
	}
	if lease != 0 || was.Lease != 0 {
		if err := k.s.leases.attached(ctx, lease, cur.Key, value, written.Revision); err != nil {
			k.s.o.Log.Warn("a note of a lease stays until it ends", "key", cur.Key, "err", err)
		}
	}
	out := &pb.PutResponse{Header: header(written.Revision)}
	if putRequest.PrevKv && cur.Revision != 0 {
		out.PrevKv = was
	}
	return out, nil
}

// DeleteRange is part of the KV service.
func (k *kv) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	for {
		cur, _, err := k.get(ctx, string(r.Key), 0)
		var out *pb.DeleteRangeResponse
		if err == nil {
			out, err = k.remove(ctx, r, cur)
		}
		if refused(err) {
			continue
		}
		return out, answer(err)
	}
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case len(r.RangeEnd) > 0:
		return unimplemented("each deletion is a revision of its own: delete key by key")
	}
	return nil
}

// remove deletes the key if it still is as in cur.
func (k *kv) remove(
	ctx context.Context, request *pb.DeleteRangeRequest, cur store.KV,
) (*pb.DeleteRangeResponse, error) {
	if cur.Revision == 0 {
		rev, err := k.st.Revision(ctx)
		return &pb.DeleteRangeResponse{Header: header(rev)}, err
	}
	was := k.s.open(cur)
	_, w, err := k.st.Delete(ctx, cur.Key, cur.Revision)
	if err != nil {
		return nil, err
	}
	if was.Lease != 0 {
		if err := k.s.leases.attached(ctx, 0, cur.Key, nil, w.Revision); err != nil {
			k.s.o.Log.Warn("a note of a lease stays until it ends", "key", cur.Key, "err", err)
		}
	}
	out := &pb.DeleteRangeResponse{Header: header(w.Revision), Deleted: 1}
	if request.PrevKv {
		out.PrevKvs = []*mvccpb.KeyValue{was}
	}
	return out, nil
}

// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"bytes"
	"cmp"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"keelson/store"
)

// written is the only key that ops write, "" when they only read.
func written(ops []*pb.RequestOp) (key string, err error) {
	const many = "transactions of more than one write"
	for _, op := range ops {
		var k []byte
		switch u := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			continue
		case *pb.RequestOp_RequestPut:
			if err := checkPut(u.RequestPut); err != nil {
				return "", err
			}
			k = u.RequestPut.Key
		case *pb.RequestOp_RequestDeleteRange:
			if err := checkDelete(u.RequestDeleteRange); err != nil {
				return "", err
			}
			k = u.RequestDeleteRange.Key
		default:
			return "", unimplemented("nested transactions")
		}
		if key != "" {
			return "", unimplemented(many)
		}
		key = string(k)
	}
	return key, nil
}

// Txn is part of the KV service. The store writes a key if it is at a revision: so the conditions are judged on the key
// as it is, and the write happens if it still is, else all begins again.
func (k *kv) Txn(ctx context.Context, txnRequest *pb.TxnRequest) (*pb.TxnResponse, error) {
	then, err := written(txnRequest.Success)
	if err != nil {
		return nil, err
	}
	otherwise, err := written(txnRequest.Failure)
	if err != nil {
		return nil, err
	}
	key := max(then, otherwise)
	if key == "" {
		return k.readTxn(ctx, txnRequest)
	}
	const why = "conditions on another key than the one that is written"
	if then != "" && otherwise != "" && then != otherwise {
		return nil, unimplemented("writes of different keys")
	}
	for _, c := range txnRequest.Compare {
		if string(c.Key) != key || len(c.RangeEnd) > 0 {
			return nil, unimplemented(why)
		}
	}
	for {
		out, err := k.tryTxn(ctx, txnRequest, key)
		if refused(err) {
			continue
		}
		return out, answer(err)
	}
}

func (k *kv) tryTxn(ctx context.Context, txnRequest *pb.TxnRequest, key string) (*pb.TxnResponse, error) {
	cur, latest, err := k.get(ctx, key, 0)
	if err != nil {
		return nil, err
	}
	ok, err := k.holds(txnRequest.Compare, cur)
	if err != nil {
		return nil, err
	}
	ops := txnRequest.Failure
	if ok {
		ops = txnRequest.Success
	}
	out := &pb.TxnResponse{Succeeded: ok}
	for i, op := range ops { // the write first: it says at which revision the reads are done
		var at int64
		var res *pb.ResponseOp
		switch u := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			p, err := k.put(ctx, u.RequestPut, cur)
			if err != nil {
				return nil, err
			}
			at = p.Header.Revision
			res = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: p}}
		case *pb.RequestOp_RequestDeleteRange:
			d, err := k.remove(ctx, u.RequestDeleteRange, cur)
			if err != nil {
				return nil, err
			}
			at = d.Header.Revision
			res = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: d}}
		default:
			continue
		}
		before, err := k.reads(ctx, ops[:i], at-1)
		if err != nil {
			return nil, err
		}
		after, err := k.reads(ctx, ops[i+1:], at)
		if err != nil {
			return nil, err
		}
		out.Header = header(at)
		out.Responses = append(append(before, res), after...)
		return out, nil
	}
	out.Header = header(latest)
	out.Responses, err = k.reads(ctx, ops, latest)
	return out, err
}

// holds reports whether all conditions are true of cur, whose key they name.
func (k *kv) holds(conditions []*pb.Compare, cur store.KV) (bool, error) {
	e := k.s.open(cur)
	if cur.Revision > 0 && e.Version == 0 {
		e.Version = -1
		e.CreateRevision = -1 // there, and no more is known
	}
	for _, c := range conditions {
		ok, err := holds(c, e)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func holds(c *pb.Compare, kv *mvccpb.KeyValue) (bool, error) {
	n := 0
	switch u := c.TargetUnion.(type) {
	case *pb.Compare_ModRevision:
		n = cmp.Compare(kv.ModRevision, u.ModRevision)
	case *pb.Compare_CreateRevision:
		return compareCount(c, kv.CreateRevision, u.CreateRevision)
	case *pb.Compare_Version:
		return compareCount(c, kv.Version, u.Version)
	case *pb.Compare_Value:
		if kv.ModRevision == 0 {
			return false, nil // nothing is true of the value of a key that is not there
		}
		n = bytes.Compare(kv.Value, u.Value)
	case *pb.Compare_Lease:
		n = cmp.Compare(kv.Lease, u.Lease)
	default:
		return false, unimplemented("this comparison")
	}
	return compare(c, n), nil
}

// compareCount compares a create_revision or version, of which -1 says only that it is greater than 0.
func compareCount(c *pb.Compare, is, want int64) (bool, error) {
	if is >= 0 {
		return compare(c, cmp.Compare(is, want)), nil
	}
	if want > 0 {
		return false, unimplemented("the create_revision and version of keys that an older program wrote")
	}
	return compare(c, 1), nil
}

func compare(c *pb.Compare, n int) bool {
	switch c.Result {
	case pb.Compare_GREATER:
		return n > 0
	case pb.Compare_LESS:
		return n < 0
	case pb.Compare_NOT_EQUAL:
		return n != 0
	default:
		return n == 0
	}
}

// readTxn compares and reads at one revision.
func (k *kv) readTxn(ctx context.Context, txnRequest *pb.TxnRequest) (*pb.TxnResponse, error) {
	rev, err := k.st.Revision(ctx)
	if err != nil {
		return nil, answer(err)
	}
	out := &pb.TxnResponse{Header: header(rev), Succeeded: true}
	for _, c := range txnRequest.Compare {
		if len(c.RangeEnd) > 0 {
			return nil, unimplemented("conditions on ranges")
		}
		cur, _, err := k.get(ctx, string(c.Key), rev)
		if err != nil {
			return nil, answer(err)
		}
		ok, err := k.holds([]*pb.Compare{c}, cur)
		if err != nil {
			return nil, answer(err)
		}
		out.Succeeded = out.Succeeded && ok
	}
	ops := txnRequest.Failure
	if out.Succeeded {
		ops = txnRequest.Success
	}
	if out.Responses, err = k.reads(ctx, ops, rev); err != nil {
		return nil, answer(err)
	}
	return out, nil
}

// reads does ranges at revision rev, unless they name another.
func (k *kv) reads(ctx context.Context, ops []*pb.RequestOp, rev int64) ([]*pb.ResponseOp, error) {
	var out []*pb.ResponseOp
	for _, op := range ops {
		r := op.GetRequestRange()
		at := r.Revision
		if at == 0 {
			at = rev
		}
		got, err := k.read(ctx, r, at)
		if err != nil {
			return nil, err
		}
		out = append(out, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: got}})
	}
	return out, nil
}

// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"keelson/store/embed"
)

// FuzzTxn: whatever a client asks for is done or refused with a status.
func FuzzTxn(f *testing.F) {
	key := []byte("/registry/a")
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: []byte("v")}}}
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: []byte("/registry/"), RangeEnd: []byte("/registry0"), Limit: 2},
	}}
	del := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
		Key:    key,
		PrevKv: true,
	}}}
	absent := &pb.Compare{Key: key, Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{}}
	for _, txnRequest := range []*pb.TxnRequest{
		{Compare: []*pb.Compare{absent}, Success: []*pb.RequestOp{put}, Failure: []*pb.RequestOp{get}},
		{Success: []*pb.RequestOp{del, get}},
		{
			Compare: []*pb.Compare{{
				Key:         key,
				Result:      pb.Compare_GREATER,
				Target:      pb.Compare_VALUE,
				TargetUnion: &pb.Compare_Value{Value: []byte("a")},
			}},
			Success: []*pb.RequestOp{get},
			Failure: []*pb.RequestOp{put},
		},
	} {
		b, err := proto.Marshal(txnRequest)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	st, err := embed.Open(embed.Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = st.Close() })
	s := New(st, Options{})
	close(s.leases.loaded)
	k := &kv{s: s, st: st}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &pb.TxnRequest{}
		if proto.Unmarshal(b, r) != nil {
			return
		}
		if _, err := k.Txn(t.Context(), r); err != nil && status.Code(err) == codes.Unknown {
			t.Errorf("%v: %v", r, err)
		}
	})
}

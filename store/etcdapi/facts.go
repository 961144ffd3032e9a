// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"keelson/store"
)

// open is the key as etcd shows it.
func (s *Server) open(kv store.KV) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key:            []byte(kv.Key),
		Value:          kv.Value,
		Lease:          s.leases.holding(kv.Key),
		ModRevision:    kv.Revision,
		CreateRevision: kv.Created,
		Version:        kv.Version,
	}
}

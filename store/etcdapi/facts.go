// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"encoding/binary"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"keelson/store"
)

// sealed begins the value of a key that carries what etcd tells about it: create_revision (0: the revision of this very
// write) and version, unsigned varints, follow, then the value.
const sealed = "\x00keelson.etcd\x01"

// seal is what is stored for value; created 0 means by this write.
func (s *Server) seal(key string, value []byte, created, version int64) []byte {
	if strings.HasPrefix(key, s.o.Plain) {
		return value
	}
	b := make([]byte, 0, len(sealed)+len(value)+12)
	b = append(b, sealed...)
	b = binary.AppendUvarint(b, uint64(created))
	b = binary.AppendUvarint(b, uint64(version))
	return append(b, value...)
}

// open is the key as etcd shows it. Of keys that are stored plainly create_revision and version are not known.
func (s *Server) open(kv store.KV) *mvccpb.KeyValue {
	out := &mvccpb.KeyValue{Key: []byte(kv.Key), Value: kv.Value, ModRevision: kv.Revision, Lease: s.leases.holding(kv.Key)}
	if strings.HasPrefix(kv.Key, s.o.Plain) {
		return out
	}
	rest, ok := strings.CutPrefix(string(kv.Value), sealed)
	if !ok {
		return out
	}
	b := []byte(rest)
	created, n := binary.Uvarint(b)
	if n <= 0 {
		return out
	}
	version, m := binary.Uvarint(b[n:])
	if m <= 0 {
		return out
	}
	out.Value, out.CreateRevision, out.Version = b[n+m:], int64(created), int64(version)
	if created == 0 {
		out.CreateRevision = kv.Revision
	}
	return out
}

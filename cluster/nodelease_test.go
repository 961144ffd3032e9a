// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"keelson/cluster/storage"
)

// TestLongLeases: a node's lease is long only where the node's process is the whole control plane.
func TestLongLeases(t *testing.T) {
	etcd := storage.Config{Servers: []string{"http://127.0.0.1:2379"}}
	for name, test := range map[string]struct {
		cfg  Config
		long bool
	}{
		"alone":                          {cfg: Config{}, long: true},
		"alone, serves the etcd API":     {cfg: Config{EtcdListen: "127.0.0.1:2379"}, long: true},
		"on etcd":                        {cfg: Config{Etcd: etcd}},
		"controllers in another process": {cfg: Config{NoAgents: true}},
	} {
		want := map[bool]int64{true: int64(heartbeat)}[test.long]
		if got := test.cfg.leaseInterval(); int64(got) != want {
			t.Errorf("%s: the lease is renewed every %v, want long: %v", name, got, test.long)
		}
	}
}

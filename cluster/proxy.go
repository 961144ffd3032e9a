// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"

	"keelson/lib/run"
	"keelson/proxy"
)

// serviceTable is the nftables table of Services.
func serviceTable(dir DataDir) string { return "keelson-" + dir.ID() + "-svc" }

// proxy serves Services on this node.
func (s *site) proxy() (run.Func, error) {
	cfg := proxy.Config{
		Client: s.client(roleIdentity{user: is("system:kube-proxy"), agent: "kube-proxy"}), NodeName: s.cfg.NodeName, Table: serviceTable(s.dir),
		PodCIDRs: s.cfg.PodCIDRs,
		Options:  s.cfg.Proxy, Marks: s.marks, Log: s.room("proxy"),
	}
	p, err := proxy.New(cfg)
	if err != nil {
		return nil, err
	}
	return p.Run, nil
}

func purgeProxy(_ context.Context, dir DataDir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return proxy.Purge(serviceTable(dir))
}

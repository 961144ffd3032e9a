// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"

	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/listen"
	"keelson/cluster/nodehost"
	"keelson/lib/connlimit"
	"keelson/lib/log"
)

// held is what a cluster has taken of its machine: locks, the claim on its pod CIDRs, log file, ports.
type held struct{ taken []io.Closer }

func (h *held) add(c io.Closer) { h.taken = append(h.taken, c) }

// release gives everything back, the last first. It may be called twice.
func (h *held) release() {
	for _, c := range slices.Backward(h.taken) {
		_ = c.Close()
	}
	h.taken = nil
}

// locks takes the directory, and its node when there is one: a kubelet of its own may run on the same directory.
func (h *held) locks(dir datadir.Dir, cfg Config) error {
	lock, err := dir.Lock()
	if err != nil {
		return err
	}
	h.add(lock)
	if !cfg.realNode() {
		return nil
	}
	node, err := dir.LockNode()
	if err != nil {
		return err
	}
	h.add(node)
	return nil
}

// open makes a cluster of what its directory and machine have: log, reserve of disk space, name of the node, ranges of
// addresses, ports, keys. The directory is locked.
func open(cfg Config, dir datadir.Dir, held *held, found found) (*Cluster, error) {
	if err := dir.KeepStoreKind(len(cfg.Etcd.Servers) > 0); err != nil {
		return nil, err
	}
	logger, err := held.openLog(dir, cfg.Verbose)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir.Sub(datadir.MigratingStore)); err != nil { // left by a killed migration
		return nil, err
	}
	if err := cfg.Backup.Forget(dir); err != nil {
		return nil, err
	}
	reserveUsed, err := dir.Reserve().Fill()
	if err != nil {
		logger.Warn("there is no reserve for a start with a full disk", "err", err)
	}
	shares, err := connlimit.OwnShares()
	if err != nil {
		return nil, err
	}
	if cfg, err = held.settle(cfg, dir, logger); err != nil {
		return nil, err
	}

	// The ports come before the keys: the kubeconfigs name the API's.
	listener, err := listen.Open(cfg.Listen.Address(), cfg.Port, cfg.podGateway())
	if err != nil {
		return nil, err
	}
	held.add(listener)
	var etcd net.Listener
	if cfg.EtcdListen != "" {
		if etcd, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", cfg.EtcdListen); err != nil {
			return nil, fmt.Errorf("listen for clients of etcd: %w", err)
		}
		held.add(etcd)
	}
	keys, err := openKeys(cfg, dir, listen.LocalURL(listener.Addr()), logger)
	if err != nil {
		return nil, err
	}
	return &Cluster{
		cfg:         cfg,
		dir:         dir,
		held:        held,
		log:         logger,
		listener:    listener,
		shares:      shares,
		etcd:        etcd,
		keys:        keys,
		found:       found,
		reserveUsed: reserveUsed,
	}, nil
}

// settle returns cfg with what the directory has kept of earlier starts: the name of the node, to which pods and
// volumes are bound, and the ranges of Services and pods, which must not overlap.
func (h *held) settle(cfg Config, dir datadir.Dir, logger *slog.Logger) (Config, error) {
	var err error
	if cfg.realNode() {
		if cfg.NodeName, err = nodehost.KeepName(dir, cfg.NodeName, logger); err != nil {
			return cfg, err
		}
	}
	ranges := cfg.Controllers.PodRanges
	ranges.Reserved, _ = cfg.Services.Ranges() // checked by Validate
	if cfg.keptServices, err = nodehost.KeepServiceRanges(dir, ranges.Reserved); err != nil {
		return cfg, err
	}
	podCIDRs, claim, err := nodehost.ChoosePodCIDRs(cfg.PodCIDRs, dir, ranges)
	if err != nil {
		return cfg, err
	}
	h.add(claim) // against other clusters on this machine
	cfg.PodCIDRs = podCIDRs
	if stays := nodehost.OutsideOf(podCIDRs, ranges.Cluster); len(ranges.Cluster) > 0 && len(stays) > 0 {
		logger.Warn("this node keeps the pod range it has, which --cluster-cidr does not have: only nodes that come "+
			"get theirs from there",
			"range", nodehost.PrefixStrings(stays), "cluster-cidr", nodehost.PrefixStrings(ranges.Cluster),
			"file", dir.Sub(datadir.PodCIDRFile))
	}
	return cfg, nil
}

// openKeys opens or creates the keys of a cluster, and writes the kubeconfigs with its URL.
func openKeys(cfg Config, dir datadir.Dir, url string, logger *slog.Logger) (*credentials.Keys, error) {
	opened, err := credentials.KeepSecret(credentials.SecretFiles(dir)...)
	if err != nil {
		return nil, fmt.Errorf("keep keys secret: %w", err)
	}
	if len(opened) > 0 {
		logger.Warn("others could read private keys; now only their owner can", "files", opened)
	}
	uses, err := cfg.keys()
	if err != nil {
		return nil, err
	}
	keys, err := credentials.Open(uses, dir)
	if err != nil {
		return nil, err
	}
	return keys, keys.WriteKubeconfigs(dir, url, "")
}

// keys says what the certificates of a cluster with this configuration are for.
func (c Config) keys() (credentials.Config, error) {
	ranges, err := c.Services.Ranges()
	if err != nil {
		return credentials.Config{}, err
	}
	names, _ := c.Listen.Certified()
	cfg := credentials.Config{
		Life:        c.CertificateLife,
		NodeName:    c.NodeName,
		NodeIPs:     netIPs(c.nodeIPs()),
		ServerNames: names,
		ServerIPs:   servingAddresses(c, union(c.keptServices, ranges)),
		API:         &c.API,
	}
	for _, r := range table() {
		if r.file != "" {
			cfg.Agents = append(cfg.Agents, credentials.Agent{File: r.file, User: r.user(c)})
		}
	}
	return cfg, nil
}

type closer func() error

func (f closer) Close() error { return f() }

func (h *held) openLog(dir datadir.Dir, verbose bool) (*slog.Logger, error) {
	file, err := log.Open(dir.Log(), log.Policy())
	if err != nil {
		return nil, err
	}
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	folder := log.Fold(slog.NewTextHandler(file, &slog.HandlerOptions{Level: level}))
	h.add(closer(func() error {
		folder.Flush()
		return file.Close()
	}))
	return slog.New(folder), nil
}

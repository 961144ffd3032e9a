// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"keelson/apiserver"
	"keelson/apiserver/objects"
	"keelson/cluster/datadir"
	"keelson/store"
)

// settingsKey is where the store keeps the settings that all servers of a cluster must have alike: lines "FLAG VALUE".
// It is below objects.Root for the same reason as fingerprintsKey.
const settingsKey = objects.Root + "keelson/settings"

// The flags of sharedSettings.
const (
	serviceRangeFlag = "service-cluster-ip-range"
	domainFlag       = "cluster-domain"
)

// sharedSettings are such settings by their flags. Where a setting is absent a server does not use it, as one without a
// node does not use the domain.
type sharedSettings map[string]string

func parseSettings(b []byte) sharedSettings {
	out := sharedSettings{}
	for line := range strings.Lines(string(b)) {
		if flag, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			out[flag] = value
		}
	}
	return out
}

func (s sharedSettings) bytes() []byte {
	var out bytes.Buffer
	for _, flag := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&out, "%s %s\n", flag, s[flag])
	}
	return out.Bytes()
}

// differs reports whether both have a setting and not the same.
func (s sharedSettings) differs(others sharedSettings, flag string) bool {
	return s[flag] != "" && others[flag] != "" && s[flag] != others[flag]
}

// sharedSettings are this server's.
func (c *Cluster) sharedSettings() sharedSettings {
	out := sharedSettings{serviceRangeFlag: strings.Join(prefixStrings(c.cfg.keptServices), ",")}
	if c.cfg.realNode() {
		out[domainFlag] = c.cfg.Node.domain()
	}
	return out
}

// keepSettings compares a server's settings with those in the store, and adds what is not known there.
//
//   - Services keep their addresses, so another range is refused: the DNS server of this node and the certificate of
//     this server would have addresses that no Service has.
//   - The domain may change while no other server runs: pods get it when they start, and every DNS server answers for
//     the domain of its own server alone. running reports whether another server runs.
func (c *Cluster) keepSettings(
	ctx context.Context, st store.Store, running func(context.Context) (bool, error),
) error {
	own := c.sharedSettings()
	return keepShared(ctx, st, settingsKey, c.log, func(stored []byte) ([]byte, error) {
		known := parseSettings(stored)
		if own.differs(known, serviceRangeFlag) {
			return nil, c.otherServiceRange(known[serviceRangeFlag])
		}
		if own.differs(known, domainFlag) {
			if err := mayChangeDomain(ctx, known[domainFlag], own[domainFlag], running, c.log); err != nil {
				return nil, err
			}
		}
		maps.Copy(known, own)
		return known.bytes(), nil
	})
}

// otherServiceRange is the refusal of a server whose Services have another range than those of the store. Its directory
// keeps the range of its first start, unless that is this one.
func (c *Cluster) otherServiceRange(known string) error {
	remove := ""
	if !c.fresh {
		remove = "delete " + c.dir.Sub(datadir.ServiceRangeFile) + " and "
	}
	return fmt.Errorf("the Services of this cluster have %s, those of this server %s: %sstart with --%s=%s",
		known, strings.Join(prefixStrings(c.cfg.keptServices), ","), remove, serviceRangeFlag, known)
}

func mayChangeDomain(
	ctx context.Context, known, own string, running func(context.Context) (bool, error), log *slog.Logger,
) error {
	log.Warn("the cluster has had another domain: this start waits to see whether another server runs", "domain", own,
		"before", known)
	others, err := running(ctx)
	if err != nil {
		return fmt.Errorf("look for other servers: %w", err)
	}
	if others {
		return fmt.Errorf("the other servers of this cluster have the domain %s, this one %s: start with --%s=%s, or "+
			"stop them all first", known, own, domainFlag, known)
	}
	log.Warn("the cluster's domain changes: pods that run keep the old one, restart them", "domain", own,
		"before", known)
	return nil
}

// otherServers reports whether another server runs on st. A server with the embedded store has it for itself while it
// starts.
func (c *Cluster) otherServers(st store.Store) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		if len(c.cfg.Etcd.Servers) == 0 {
			return false, nil
		}
		return apiserver.ServersRenew(ctx, st)
	}
}

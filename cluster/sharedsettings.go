// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"keelson/apiserver/objects"
	"keelson/apiserver/upkeep"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/cluster/storage"
	"keelson/store"
)

// settingsKey is where the store keeps the settings that all servers of a cluster must have alike: lines "FLAG VALUE".
// It is below objects.Root for the same reason as credentials.FingerprintsKey.
const settingsKey = objects.Root + "keelson/settings"

// The flags of sharedSettings.
const (
	serviceRangeFlag = "service-cluster-ip-range"
	domainFlag       = "cluster-domain"
	issuerFlag       = "service-account-issuer"
	gatesFlagName    = "feature-gates"
	admissionFlag    = "enable-admission-plugins"
	noAdmissionFlag  = "disable-admission-plugins"
	encryptionFlag   = "encryption-provider-config"
)

// encryptionWrites and encryptionReads have the keys with which the server that was started last encrypts, and those
// that it can read with.
const (
	encryptionWrites = encryptionFlag + "/writes"
	encryptionReads  = encryptionFlag + "/reads"
)

// noneSet stands for a list without an entry: an absent setting is not compared.
const noneSet = "-"

// warnedSettings may differ for a while, as in an upgrade of one server after the other.
var warnedSettings = []string{issuerFlag, gatesFlagName, admissionFlag, noAdmissionFlag}

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
func (c *Cluster) sharedSettings() (sharedSettings, error) {
	api := &c.cfg.API
	out := sharedSettings{
		serviceRangeFlag: strings.Join(nodehost.PrefixStrings(c.cfg.keptServices), ","),
		issuerFlag:       listed(api.Tokens.AllIssuers()),
		gatesFlagName:    cmp.Or(c.cfg.Gates.String(), noneSet),
		admissionFlag:    listed(sorted(api.Admission.Enable)),
		noAdmissionFlag:  listed(sorted(api.Admission.Disable)),
	}
	if c.cfg.realNode() {
		out[domainFlag] = c.cfg.Node.Domain()
	}
	writes, reads, known, err := api.Encryption.KeyIDs()
	if err != nil {
		return nil, err
	}
	if known {
		out[encryptionWrites] = listed(writes)
		out[encryptionReads] = listed(reads)
	}
	return out, nil
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

func listed(list []string) string { return cmp.Or(strings.Join(list, ","), noneSet) }

// lacks reports whether a list of others has an entry that is not in this server's; an absent list has none.
func (s sharedSettings) lacks(flag string, others sharedSettings, theirs string) bool {
	if s[flag] == "" || others[theirs] == "" || others[theirs] == noneSet {
		return false
	}
	own := strings.Split(s[flag], ",")
	return slices.ContainsFunc(strings.Split(others[theirs], ","), func(id string) bool {
		return !slices.Contains(own, id)
	})
}

// keepSettings compares a server's settings with those in the store, and adds what is not known there.
//
//   - Services keep their addresses, so another range is refused: the DNS server of this node and the certificate of
//     this server would have addresses that no Service has.
//   - The domain may change while no other server runs: pods get it when they start, and every DNS server answers for
//     the domain of its own server alone. running reports whether another server runs.
//   - Of two servers that run, each must read what the other encrypts.
//   - Issuers of tokens, feature gates and admission plugins should be alike, and are warned about.
func (c *Cluster) keepSettings(
	ctx context.Context, st store.Store, running func(context.Context) (bool, error),
) error {
	own, err := c.sharedSettings()
	if err != nil {
		return err
	}
	return storage.KeepShared(ctx, st, settingsKey, c.log, func(stored []byte) ([]byte, error) {
		known := parseSettings(stored)
		if own.differs(known, serviceRangeFlag) {
			return nil, c.otherServiceRange(known[serviceRangeFlag])
		}
		if own.differs(known, domainFlag) {
			if err := mayChangeDomain(ctx, known[domainFlag], own[domainFlag], running, c.log); err != nil {
				return nil, err
			}
		}
		if err := mayEncrypt(ctx, known, own, running); err != nil {
			return nil, err
		}
		if len(c.cfg.Etcd.Servers) > 0 { // a single server has no other one to differ from
			warnSettings(known, own, c.log)
		}
		delete(known, encryptionWrites)
		delete(known, encryptionReads)
		maps.Copy(known, own)
		return known.bytes(), nil
	})
}

// mayEncrypt refuses a server next to another one when one of the two cannot read what the other encrypts.
func mayEncrypt(
	ctx context.Context, known, own sharedSettings, running func(context.Context) (bool, error),
) error {
	unread := own.lacks(encryptionReads, known, encryptionWrites)
	if !unread && !known.lacks(encryptionReads, own, encryptionWrites) {
		return nil
	}
	others, err := running(ctx)
	if err != nil {
		return fmt.Errorf("look for other servers: %w", err)
	}
	switch {
	case !others:
		return nil // the keys of this one are those of the cluster from now on
	case unread:
		return fmt.Errorf("the other servers of this cluster encrypt with a key that this one does not have: start "+
			"it with their --%s", encryptionFlag)
	}
	return fmt.Errorf("this server encrypts with a key that the others cannot read with: first add it to their --%s, "+
		"not as the first one", encryptionFlag)
}

// warnSettings warns of settings that the server that was started last has not alike.
func warnSettings(known, own sharedSettings, log *slog.Logger) {
	for _, flag := range warnedSettings {
		if own.differs(known, flag) {
			log.Warn("this server has another setting than the one that was started last: set it alike on all servers "+
				"of this store", "flag", "--"+flag, "here", own[flag], "there", known[flag])
		}
	}
}

// otherServiceRange is the refusal of a server whose Services have another range than those of the store. Its directory
// keeps the range of its first start, unless that is this one.
func (c *Cluster) otherServiceRange(known string) error {
	remove := ""
	if !c.fresh {
		remove = "delete " + c.dir.Sub(datadir.ServiceRangeFile) + " and "
	}
	return fmt.Errorf("the Services of this cluster have %s, those of this server %s: %sstart with --%s=%s",
		known, strings.Join(nodehost.PrefixStrings(c.cfg.keptServices), ","), remove, serviceRangeFlag, known)
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
		return upkeep.ServersRenew(ctx, st)
	}
}

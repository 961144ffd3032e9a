// SPDX-License-Identifier: Apache-2.0

// Package sharedsettings compares the settings that all API servers of a cluster should have alike. The store keeps
// those of the server that was started last (docs/decisions/0214). A start calls it once, before it serves anything.
package sharedsettings

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"keelson/api/gates"
	"keelson/apiserver/objects"
	"keelson/apiserver/options"
	"keelson/cluster/nodehost"
	"keelson/cluster/storage"
	"keelson/store"
)

// settingsKey is where the store keeps the settings that all servers of a cluster must have alike: lines "FLAG VALUE".
// It is below objects.Root for the same reason as credentials.FingerprintsKey.
const settingsKey = objects.Root + "keelson/settings"

// The flags of settings.
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

// mayDiffer are those that differ for a while, as in an upgrade of one server after the other.
var mayDiffer = []string{issuerFlag, gatesFlagName, admissionFlag, noAdmissionFlag}

// Server is what a server has of them.
type Server struct {
	// Services are the ranges of addresses of Services.
	Services []netip.Prefix
	// RangeFile keeps them in the data directory since its first start; empty: this is the first.
	RangeFile string
	// Domain is the cluster's DNS domain; empty: the server has no node, and does not use it.
	Domain string
	API    *options.Options
	Gates  gates.On
	// Running reports whether another server runs on the store; nil: none can, the store is this server's alone.
	Running func(context.Context) (bool, error)
	Log     *slog.Logger
}

// settings are values by their flags. Where a setting is absent a server does not use it, as one without a node does
// not use the domain.
type settings map[string]string

func parseSettings(b []byte) settings {
	out := settings{}
	for line := range strings.Lines(string(b)) {
		if flag, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			out[flag] = value
		}
	}
	return out
}

func (s settings) bytes() []byte {
	var out bytes.Buffer
	for _, flag := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&out, "%s %s\n", flag, s[flag])
	}
	return out.Bytes()
}

// differs reports whether both have a setting and not the same.
func (s settings) differs(others settings, flag string) bool {
	return s[flag] != "" && others[flag] != "" && s[flag] != others[flag]
}

// settings are this server's.
func (s Server) settings() (settings, error) {
	out := settings{
		serviceRangeFlag: s.ranges(),
		issuerFlag:       listed(s.API.Tokens.AllIssuers()),
		gatesFlagName:    cmp.Or(s.Gates.String(), noneSet),
		admissionFlag:    listed(sorted(s.API.Admission.Enable)),
		noAdmissionFlag:  listed(sorted(s.API.Admission.Disable)),
	}
	if s.Domain != "" {
		out[domainFlag] = s.Domain
	}
	writes, reads, known, err := s.API.Encryption.KeyIDs()
	if err != nil {
		return nil, err
	}
	if known {
		out[encryptionWrites] = listed(writes)
		out[encryptionReads] = listed(reads)
	}
	return out, nil
}

func (s Server) ranges() string { return strings.Join(nodehost.PrefixStrings(s.Services), ",") }

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

func listed(list []string) string { return cmp.Or(strings.Join(list, ","), noneSet) }

// lacks reports whether a list of others has an entry that is not in this server's; an absent list has none.
func (s settings) lacks(flag string, others settings, theirs string) bool {
	if s[flag] == "" || others[theirs] == "" || others[theirs] == noneSet {
		return false
	}
	own := strings.Split(s[flag], ",")
	return slices.ContainsFunc(strings.Split(others[theirs], ","), func(id string) bool {
		return !slices.Contains(own, id)
	})
}

// Keep compares the server's settings with those in the store, and adds what is not known there.
//
//   - Services keep their addresses, so another range is refused: the DNS server of this node and the certificate of
//     this server would have addresses that no Service has.
//   - The domain may change while no other server runs: pods get it when they start, and every DNS server answers for
//     the domain of its own server alone.
//   - Of two servers that run, each must read what the other encrypts.
//   - Issuers of tokens, feature gates and admission plugins should be alike, and are warned about.
func (s Server) Keep(ctx context.Context, st store.Store) error {
	own, err := s.settings()
	if err != nil {
		return err
	}
	return storage.KeepShared(ctx, st, settingsKey, s.Log, func(stored []byte) ([]byte, error) {
		known := parseSettings(stored)
		if own.differs(known, serviceRangeFlag) {
			return nil, s.otherServiceRange(known[serviceRangeFlag])
		}
		if own.differs(known, domainFlag) {
			if err := s.mayChangeDomain(ctx, known[domainFlag], own[domainFlag]); err != nil {
				return nil, err
			}
		}
		if err := s.mayEncrypt(ctx, known, own); err != nil {
			return nil, err
		}
		if s.Running != nil { // a single server has no other one to differ from
			warn(known, own, s.Log)
		}
		delete(known, encryptionWrites)
		delete(known, encryptionReads)
		maps.Copy(known, own)
		return known.bytes(), nil
	})
}

// mayEncrypt refuses a server next to another one when one of the two cannot read what the other encrypts.
func (s Server) mayEncrypt(ctx context.Context, known, own settings) error {
	unread := own.lacks(encryptionReads, known, encryptionWrites)
	if !unread && !known.lacks(encryptionReads, own, encryptionWrites) {
		return nil
	}
	others, err := s.others(ctx)
	if err != nil {
		return err
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

// others reports whether another server runs.
func (s Server) others(ctx context.Context) (bool, error) {
	if s.Running == nil {
		return false, nil
	}
	others, err := s.Running(ctx)
	if err != nil {
		return false, fmt.Errorf("look for other servers: %w", err)
	}
	return others, nil
}

// warn warns of settings that the server that was started last has not alike.
func warn(known, own settings, log *slog.Logger) {
	for _, flag := range mayDiffer {
		if own.differs(known, flag) {
			log.Warn("this server has another setting than the one that was started last: set it alike on all servers "+
				"of this store", "flag", "--"+flag, "here", own[flag], "there", known[flag])
		}
	}
}

// otherServiceRange is the refusal of a server whose Services have another range than those of the store. Its directory
// keeps the range of its first start, unless that is this one.
func (s Server) otherServiceRange(known string) error {
	remove := ""
	if s.RangeFile != "" {
		remove = "delete " + s.RangeFile + " and "
	}
	return fmt.Errorf("the Services of this cluster have %s, those of this server %s: %sstart with --%s=%s",
		known, s.ranges(), remove, serviceRangeFlag, known)
}

func (s Server) mayChangeDomain(ctx context.Context, known, own string) error {
	s.Log.Warn("the cluster has had another domain: this start waits to see whether another server runs", "domain", own,
		"before", known)
	others, err := s.others(ctx)
	if err != nil {
		return err
	}
	if others {
		return fmt.Errorf("the other servers of this cluster have the domain %s, this one %s: start with --%s=%s, or "+
			"stop them all first", known, own, domainFlag, known)
	}
	s.Log.Warn("the cluster's domain changes: pods that run keep the old one, restart them", "domain", own,
		"before", known)
	return nil
}

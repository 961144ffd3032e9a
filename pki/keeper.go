// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"keelson/lib/linux"
	"keelson/lib/signal"
)

// Keeper renews certificates while they are in use, takes over what another program has stored, and warns of
// certificates that expire. It sleeps until there is something to do.
type Keeper struct {
	// Dir is watched for changes; empty: nothing is stored.
	Dir string
	// Sources are the CAs of Leaves, and other keys that change only in Dir.
	Sources []Source
	Leaves  []*Leaf
	// Others describes certificates that are not renewed here. It may be nil.
	Others func() []Info
	// Changed is called at first and after Sources or Leaves have changed; it may be called without a change. It may be
	// nil.
	Changed func(context.Context) error
	// Warn gets a warning once a day; it may be nil.
	Warn func(Info, string)
	Log  *slog.Logger

	// Now and SleepUntil are the wall clock; nil: the machine's.
	Now        func() time.Time
	SleepUntil func(context.Context, time.Time) error

	warned map[string]time.Time // by Info.Name
	failed bool                 // Changed must be called: the last call failed, or there was none
}

// Source is something that is read from a directory. Refresh reads it again, and reports whether that changed it; on an
// error the previous one stays.
type Source interface {
	Name() string
	Refresh() (changed bool, err error)
}

// Limits of a sleep: after a failed renewal, and after a warning.
const (
	retryRenewal = 10 * time.Minute
	warnAgain    = 24 * time.Hour
)

// All describes the certificates of the keeper.
func (k *Keeper) All() []Info { return All(k.Leaves, k.Others) }

// All describes leaves and others, which may be nil.
func All(leaves []*Leaf, others func() []Info) []Info {
	var out []Info
	for _, l := range leaves {
		out = append(out, l.Info())
	}
	if others != nil {
		out = append(out, others()...)
	}
	SortInfos(out)
	return out
}

// Info describes the current certificate.
func (l *Leaf) Info() Info {
	info := Describe(l.name, l.file(), l.Certificate().Leaf, BySelf)
	due := l.Due().UTC()
	info.Renews = &due
	if due.After(info.Expires) { // it ends with its authority
		info.Renews = nil
	}
	return info
}

// Run renews until ctx ends.
func (k *Keeper) Run(ctx context.Context, ready func()) error {
	if k.Now == nil {
		k.Now = time.Now
	}
	if k.SleepUntil == nil {
		k.SleepUntil = linux.SleepUntil
	}
	k.warned = map[string]time.Time{}
	k.failed = true
	touched := signal.New()
	group, ctx := errgroup.WithContext(ctx)
	if k.Dir != "" {
		group.Go(func() error {
			return linux.WatchDir(ctx, k.Dir, touched.Notify)
		})
	}
	group.Go(func() error {
		next := k.step(ctx)
		ready()
		for ctx.Err() == nil {
			if err := k.sleep(ctx, next, touched.C()); err != nil {
				return err
			}
			next = k.step(ctx)
		}
		return nil
	})
	return group.Wait()
}

// sleep returns at a time, when the directory was touched, or when ctx is done.
func (k *Keeper) sleep(ctx context.Context, until time.Time, touched <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan error, 1)
	go func() { slept <- k.SleepUntil(ctx, until) }() // ends with ctx
	select {
	case err := <-slept:
		return err
	case <-touched:
		cancel()
		return <-slept
	}
}

// step renews what is due and warns. It returns when it must be called again.
func (k *Keeper) step(ctx context.Context) (next time.Time) {
	now := k.Now()
	next = now.Add(10 * 365 * 24 * time.Hour)
	changed := k.refreshSources() || k.failed
	for _, l := range k.Leaves {
		different, err := l.Refresh()
		if different {
			changed = true
			k.Log.Info("certificate renewed", "name", l.name, "file", l.file(), "expires",
				l.Certificate().Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		if err != nil {
			k.Log.Error("renew certificate, will retry", "name", l.name, "err", err)
			next = earlier(next, now.Add(retryRenewal))
		} else {
			next = earlier(next, l.Due())
		}
	}
	if changed && k.Changed != nil {
		err := k.Changed(ctx)
		if k.failed = err != nil; k.failed {
			k.Log.Error("use renewed certificates, will retry", "err", err)
			next = earlier(next, now.Add(retryRenewal))
		}
	}
	next = earlier(next, k.warn(now))
	if soonest := now.Add(time.Second); next.Before(soonest) {
		return soonest
	}
	return next
}

func (k *Keeper) refreshSources() (changed bool) {
	for _, source := range k.Sources {
		different, err := source.Refresh()
		if err != nil { // they are being copied; the next file causes another attempt
			k.Log.Warn("a key stays as it is until its files fit", "name", source.Name(), "err", err)
		}
		if different {
			changed = true
			k.Log.Info("key or certificate authority changed", "name", source.Name())
		}
	}
	return changed
}

// warn reports certificates that expire. It returns when there is the next one to report.
func (k *Keeper) warn(now time.Time) (next time.Time) {
	next = now.Add(10 * 365 * 24 * time.Hour)
	for _, info := range k.All() {
		text := info.Warning(now)
		if text == "" {
			delete(k.warned, info.Name)
			next = earlier(next, info.Warns())
			continue
		}
		if last := k.warned[info.Name]; last.IsZero() || now.Sub(last) >= warnAgain {
			k.warned[info.Name] = now
			k.Log.Warn("a certificate needs attention", "name", info.Name, "what", text)
			if k.Warn != nil {
				k.Warn(info, text)
			}
		}
		next = earlier(next, k.warned[info.Name].Add(warnAgain))
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

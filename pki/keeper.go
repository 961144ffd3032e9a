// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"keelson/lib/linux"
)

// Keeper renews certificates while they are in use, takes over what another program has stored, and warns of
// certificates that expire. It sleeps until there is something to do.
type Keeper struct {
	// Dir is watched for changes; empty: nothing is stored.
	Dir string
	// Authorities issue Leaves. They change only in Dir.
	Authorities []*Authority
	Leaves      []*Leaf
	// Others describes certificates that are not renewed here. It may be nil.
	Others func() []Info
	// Changed is called after Authorities or Leaves have changed; it may be called without a change. It may be nil.
	Changed func() error
	// Warn gets a warning once a day; it may be nil.
	Warn func(Info, string)
	Log  *slog.Logger

	// Now and SleepUntil are the wall clock; nil: the machine's.
	Now        func() time.Time
	SleepUntil func(context.Context, time.Time) error

	warned map[string]time.Time // by Info.Name
	failed bool                 // the last Changed failed
}

// Limits of a sleep: after a failed renewal, and after a warning.
const (
	retryRenewal = 10 * time.Minute
	warnAgain    = 24 * time.Hour
)

// All describes the certificates.
func (k *Keeper) All() []Info {
	var out []Info
	for _, l := range k.Leaves {
		out = append(out, l.Info())
	}
	if k.Others != nil {
		out = append(out, k.Others()...)
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
	touched := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	if k.Dir != "" {
		group.Go(func() error {
			return linux.WatchDir(ctx, k.Dir, func() {
				select {
				case touched <- struct{}{}:
				default:
				}
			})
		})
	}
	group.Go(func() error {
		next := k.step()
		ready()
		for ctx.Err() == nil {
			if err := k.sleep(ctx, next, touched); err != nil {
				return err
			}
			next = k.step()
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
func (k *Keeper) step() (next time.Time) {
	now := k.Now()
	next = now.Add(10 * 365 * 24 * time.Hour)
	changed := k.refreshAuthorities() || k.failed
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
		err := k.Changed()
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

func (k *Keeper) refreshAuthorities() (changed bool) {
	for _, a := range k.Authorities {
		different, err := a.Refresh()
		if err != nil { // somebody copies files; the next one wakes us up
			k.Log.Warn("the certificate authority stays as it is until its files fit", "name", a.name, "err", err)
		}
		if different {
			changed = true
			k.Log.Info("certificate authority changed", "name", a.name, "expires",
				a.Info().Expires.Format(time.RFC3339))
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

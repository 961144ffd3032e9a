// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"log/slog"
	"sync"
	"syscall"

	"keelson/store"
)

// alarm is raised, by closing its channel, when the disk takes no writes; err says why from then on.
type alarm struct {
	raised chan struct{}
	err    error
}

func newAlarm() *alarm { return &alarm{raised: make(chan struct{})} }

// get is nil while the alarm is not raised.
func (a *alarm) get() error {
	select {
	case <-a.raised:
		return a.err
	default:
		return nil
	}
}

// health is whether the disk takes writes.
type health struct {
	log *slog.Logger

	mu    sync.Mutex
	alarm *alarm // replaced when the disk is well again
}

func (h *health) current() *alarm {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.alarm
}

// changed is called with the state of the disk; nil: no fault.
func (h *health) changed(now *fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	raised := h.alarm.get() != nil
	if raised {
		h.alarm = newAlarm()
	}
	switch {
	case now != nil:
		full := errors.Is(now.err, syscall.ENOSPC) || errors.Is(now.err, syscall.EDQUOT)
		h.alarm.err = &store.UnavailableError{Cause: now.err, Full: full && !now.lasting, Lasting: now.lasting}
		close(h.alarm.raised)
		h.log.Error("disk takes no writes, reads go on", "lasting", now.lasting, "err", now.err)
	case raised:
		h.log.Info("disk takes writes again")
	}
}

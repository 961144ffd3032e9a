// SPDX-License-Identifier: Apache-2.0

// Package watchdog notifies systemd that a program still works, as sd_watchdog_enabled(3) says: a unit with WatchdogSec
// is killed and started again when the notifications stop. cluster opens it, the kubelet runs it.
package watchdog

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// Watchdog is systemd's wish to be notified. The zero Watchdog is none.
type Watchdog struct {
	socket string
	every  time.Duration // half of the time after which systemd gives the program up
}

// Open returns the watchdog of the process pid from its environment; the zero Watchdog if systemd wants none.
func Open(getenv func(string) string, pid int) (Watchdog, error) {
	limit := getenv("WATCHDOG_USEC")
	if limit == "" {
		return Watchdog{}, nil
	}
	if of := getenv("WATCHDOG_PID"); of != "" && of != strconv.Itoa(pid) {
		return Watchdog{}, nil // it is another process's
	}
	socket := getenv("NOTIFY_SOCKET")
	if socket == "" {
		return Watchdog{}, nil
	}
	micros, err := strconv.ParseInt(limit, 10, 64)
	if err != nil || micros < 2 || micros > int64(24*365*time.Hour/time.Microsecond) {
		return Watchdog{}, fmt.Errorf("WATCHDOG_USEC is %.50q: it must be a number of microseconds", limit)
	}
	if rest, abstract := strings.CutPrefix(socket, "@"); abstract {
		socket = "\x00" + rest
	}
	return Watchdog{socket: socket, every: time.Duration(micros) * time.Microsecond / 2}, nil
}

// Run notifies systemd each time that healthy has returned without an error, until ctx is done. While healthy does not
// return, or fails, systemd is not notified.
func (w Watchdog) Run(ctx context.Context, healthy func() error, log *slog.Logger) {
	if w.socket == "" {
		return
	}
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	for {
		err := healthy()
		if err == nil {
			err = w.notify(ctx)
		}
		if err != nil && ctx.Err() == nil {
			log.Error("systemd's watchdog is not notified", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w Watchdog) notify(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixgram", w.socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the datagram was sent, or not
	_, err = conn.Write([]byte("WATCHDOG=1"))
	return err
}

// SPDX-License-Identifier: Apache-2.0

// Package systemd notifies the service manager that a program is ready and that it still works, as sd_notify(3) and
// sd_watchdog_enabled(3) say. A program that no service manager has started sends nothing. cli notifies that the
// cluster is ready; cluster opens the watchdog, and the kubelet runs it.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// Ready is the state of a service that has started: units of Type=notify wait for it.
const Ready = "READY=1"

// Notify sends a state to the service manager that NOTIFY_SOCKET names. It does nothing if none is named.
func Notify(ctx context.Context, getenv func(string) string, state string) error {
	socket := getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	if err := send(ctx, address(socket), state); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Watchdog is systemd's request to be notified: a unit with WatchdogSec is killed and started again when the
// notifications stop. The zero Watchdog is none.
type Watchdog struct {
	socket string
	every  time.Duration // half of the time after which systemd gives the program up
}

// OpenWatchdog returns the watchdog of the process pid from its environment; the zero Watchdog if systemd wants none.
func OpenWatchdog(getenv func(string) string, pid int) (Watchdog, error) {
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
	return Watchdog{socket: address(socket), every: time.Duration(micros) * time.Microsecond / 2}, nil
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
			err = send(ctx, w.socket, "WATCHDOG=1")
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

// address is the address of the socket that NOTIFY_SOCKET names: @ begins one in the abstract namespace.
func address(socket string) string {
	if rest, abstract := strings.CutPrefix(socket, "@"); abstract {
		return "\x00" + rest
	}
	return socket
}

func send(ctx context.Context, socket, state string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixgram", socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the datagram was sent, or not
	_, err = conn.Write([]byte(state))
	return err
}

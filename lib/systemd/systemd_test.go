// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"keelson/lib/systemd"
)

// TestWatchdog: systemd is notified while the program is healthy, and not while it is not.
func TestWatchdog(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	listener, err := net.ListenPacket("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	env := map[string]string{"WATCHDOG_USEC": "2000", "WATCHDOG_PID": "7", "NOTIFY_SOCKET": socket}
	dog, err := systemd.OpenWatchdog(func(name string) string { return env[name] }, 7)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int32
	sick := make(chan struct{})
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		dog.Run(ctx, func() error {
			switch asked.Add(1) {
			case 1, 2:
				return nil
			case 4:
				close(sick)
			}
			return errors.New("hangs")
		}, slog.New(slog.DiscardHandler))
	}()
	<-sick
	cancel()
	<-done
	sender, err := net.Dial("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sender.Close() }()
	if _, err := sender.Write([]byte("end")); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) == 0 || got[len(got)-1] != "end" {
		b := make([]byte, 20)
		n, _, err := listener.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(b[:n]))
	}
	if want := []string{"WATCHDOG=1", "WATCHDOG=1", "end"}; !slices.Equal(got, want) {
		t.Errorf("systemd got %q, want %q", got, want)
	}
}

// TestNone: systemd wants none, or that of another process; a number that is none is an error.
func TestNone(t *testing.T) {
	for _, test := range []struct {
		usec, pid, socket string
		bad               bool
	}{
		{"", "", "/run/notify", false},
		{"1000", "8", "/run/notify", false},
		{"1000", "", "", false},
		{"soon", "", "/run/notify", true},
		{"0", "7", "/run/notify", true},
	} {
		env := map[string]string{
			"WATCHDOG_USEC": test.usec,
			"WATCHDOG_PID":  test.pid,
			"NOTIFY_SOCKET": test.socket,
		}
		dog, err := systemd.OpenWatchdog(func(name string) string { return env[name] }, 7)
		if (err != nil) != test.bad || dog != (systemd.Watchdog{}) {
			t.Errorf("%+v: %+v, %v", test, dog, err)
		}
		dog.Run(t.Context(), func() error { return errors.New("asked") }, slog.New(slog.DiscardHandler)) // at once
	}
}

// TestNotify: the state reaches the socket, in the file system or in the abstract namespace; without one there is
// nothing to do, and a manager that is gone is an error.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	for name, socket := range map[string]string{path: path, "@" + path: "\x00" + path} {
		listener, err := net.ListenPacket("unixgram", socket)
		if err != nil {
			t.Fatal(err)
		}
		env := func(string) string { return name }
		if err := systemd.Notify(t.Context(), env, systemd.Ready); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 20)
		n, _, err := listener.ReadFrom(b)
		if err != nil || string(b[:n]) != "READY=1" {
			t.Errorf("%q: the manager got %q, %v", name, b[:n], err)
		}
		_ = listener.Close()
		if err := systemd.Notify(t.Context(), env, systemd.Ready); err == nil {
			t.Errorf("%q: no error after the manager's end", name)
		}
	}
	if err := systemd.Notify(t.Context(), func(string) string { return "" }, systemd.Ready); err != nil {
		t.Error(err)
	}
}

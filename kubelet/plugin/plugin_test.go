// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// fake is a plugin behind a socket.
type fake struct {
	registration.UnimplementedRegistrationServer
	info   *registration.PluginInfo
	hangs  bool
	status chan *registration.RegistrationStatus
}

func (f *fake) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	if f.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.info, nil
}

func (f *fake) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	f.status <- s
	return &registration.RegistrationStatusResponse{}, nil
}

// serve listens until stop is called, which removes the socket.
func (f *fake) serve(t *testing.T, dir, name string) (stop func()) {
	t.Helper()
	f.status = make(chan *registration.RegistrationStatus, 10)
	t.Chdir(dir) // a test's directory may be too long for the name of a socket
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, f)
	done := make(chan struct{})
	go func() { // ends with Stop
		defer close(done)
		_ = s.Serve(l)
	}()
	stop = func() {
		s.Stop()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// taker is a Handler.
type taker struct {
	events chan string
	refuse error
}

func (h *taker) Register(_ context.Context, i Info) error {
	h.events <- "register " + i.Name + " " + i.Endpoint + " " + strings.Join(i.Versions, ",")
	return h.refuse
}

func (h *taker) Unregister(_ context.Context, i Info) { h.events <- "unregister " + i.Name }

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing happened within a minute")
	}
	panic("unreachable")
}

// registry runs one over a directory until the test ends, or the returned function is called.
func registry(t *testing.T, dir string, h Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		New(dir, map[string]Handler{"CSIPlugin": h}, slog.New(slog.DiscardHandler)).Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func csi(name string) *registration.PluginInfo {
	return &registration.PluginInfo{
		Type:              "CSIPlugin",
		Name:              name,
		Endpoint:          "/var/lib/kubelet/plugins/" + name + "/csi.sock",
		SupportedVersions: []string{"1.0.0"},
	}
}

func TestPluginsComeAndGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	h := &taker{events: make(chan string, 10)}
	early := &fake{info: csi("early")}
	stopEarly := early.serve(t, dir, "early-reg.sock")
	stop := registry(t, dir, h)
	if got := next(t, h.events); got != "register early /var/lib/kubelet/plugins/early/csi.sock 1.0.0" {
		t.Errorf("one that was there before: got %q", got)
	}
	if s := next(t, early.status); !s.GetPluginRegistered() || s.GetError() != "" {
		t.Errorf("its status is %v", s)
	}
	late := &fake{info: csi("late")}
	late.serve(t, dir, "late-reg.sock")
	if got := next(t, h.events); !strings.HasPrefix(got, "register late ") {
		t.Errorf("one that came: got %q", got)
	}
	next(t, late.status)
	stopEarly()
	if got := next(t, h.events); got != "unregister early" {
		t.Errorf("one that went: got %q", got)
	}
	again := &fake{info: csi("early")}
	again.serve(t, dir, "early-reg.sock")
	if got := next(t, h.events); !strings.HasPrefix(got, "register early ") {
		t.Errorf("one that came back: got %q", got)
	}
	next(t, again.status)
	stop()
	select {
	case e := <-h.events:
		t.Errorf("the kubelet ended: %s", e)
	default:
	}
}

func TestPluginsThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	h := &taker{events: make(chan string, 10), refuse: errors.New("no node id")}
	hangs := &fake{hangs: true}
	hangs.serve(t, dir, "a.sock")
	alien := &fake{info: &registration.PluginInfo{Type: "Toaster", Name: "x"}}
	alien.serve(t, dir, "b.sock")
	nameless := &fake{info: &registration.PluginInfo{Type: "CSIPlugin"}}
	nameless.serve(t, dir, "c.sock")
	bad := &fake{info: csi("bad")}
	bad.serve(t, dir, "d.sock")
	// Neither what is no socket, nor a link that leads out of the directory, is one.
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run/docker.sock", filepath.Join(dir, "link.sock")); err != nil {
		t.Fatal(err)
	}
	registry(t, dir, h)
	for f, want := range map[*fake]string{
		alien:    `RegisterPlugin error -- plugin registration failed with err: invalid plugin type: no handler registered for plugin type: "Toaster"`,
		bad:      "RegisterPlugin error -- plugin registration failed with err: no node id",
		nameless: "RegisterPlugin error -- plugin registration failed with err: the plugin has no name",
	} {
		if s := next(t, f.status); s.GetPluginRegistered() || s.GetError() != want {
			t.Errorf("got %v, want %q", s, want)
		}
	}
	if got := next(t, h.events); !strings.HasPrefix(got, "register bad") {
		t.Errorf("got %q", got)
	}
	if s := next(t, bad.status); s.GetPluginRegistered() { // tried again
		t.Errorf("got %v", s)
	}
}

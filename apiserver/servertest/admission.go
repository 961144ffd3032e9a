// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/plugins"
	"keelson/auth/authz"
)

// StartAdmitting starts a server with all default plugins, less those that need a controller's help.
func StartAdmitting(t testing.TB) *Running {
	t.Helper()
	return Start(t, func(c *Setup) { WithPlugins(c, "ServiceAccount") })
}

// WithPlugins gives a server the default plugins, less some.
func WithPlugins(c *Setup, without ...string) {
	WithChain(c, func(p *plugins.Config) { p.Disable = without })
}

// WithChain gives a server the plugins that edit asks for.
func WithChain(c *Setup, edit func(*plugins.Config)) {
	parts := c.Parts
	c.Parts = func(r *access.Reader) (apiserver.Parts, error) {
		p, err := parts(r)
		if err != nil {
			return p, err
		}
		conf := plugins.Config{
			Objects:    r,
			Writer:     c.Data.Writer,
			Outbound:   c.Outbound,
			NodeName:   authz.NodeName,
			Authorizer: p.Authorizer,
			Metrics:    admission.NewMetrics(),
		}
		edit(&conf)
		p.Metrics = conf.Metrics.Collectors()
		chain, follow, err := plugins.New(conf)
		p.EventHandlers = append(p.EventHandlers, follow...)
		p.Admission = chain
		return p, err
	}
}

// Warnings keeps the warning headers of a client's answers.
type Warnings struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader keeps a warning.
func (w *Warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// Take returns what came since the last call.
func (w *Warnings) Take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.all
	w.all = nil
	return out
}

// Warned returns clients of the administrator, and the warnings that they receive.
func (r *Running) Warned(t testing.TB) (*kubernetes.Clientset, *Warnings) {
	t.Helper()
	w := &Warnings{}
	cfg := rest.CopyConfig(r.Rest)
	cfg.WarningHandler = w
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, w
}

// StartHooked is StartAdmitting with two namespaces: webhooks of the tests select "hooked", and not "free".
func StartHooked(t *testing.T) (*Running, *kubernetes.Clientset, *Warnings) {
	t.Helper()
	r := StartAdmitting(t)
	c, w := r.Warned(t)
	MakeNamespace(t, c, "hooked", map[string]string{"hooked": "yes"})
	MakeNamespace(t, c, "free", nil)
	return r, c, w
}

// Elsewhere makes the server at to reachable under an address that endpoint slices may hold (they refuse 127.0.0.0/8):
// one that the loopback interface has for the time of the test.
func Elsewhere(t *testing.T, to string) (string, int32) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root, to give the loopback interface an address")
	}
	// of the documentation's range; another run's is another one
	address := fmt.Sprintf("198.51.100.%d", 1+os.Getpid()%250)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	own, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrReplace(lo, own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.AddrDel(lo, own) })
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() { // ends with either side
				_, _ = io.Copy(out, in)
				_ = out.Close()
			}()
			go func() { // ends with either side
				_, _ = io.Copy(in, out)
				_ = in.Close()
			}()
		}
	}()
	return address, int32(listener.Addr().(*net.TCPAddr).Port)
}

// SPDX-License-Identifier: Apache-2.0

// Package clustertest gives a Go test a Kubernetes cluster in one line:
//
//	c := clustertest.Start(t, clustertest.Config{})
//
// It is a whole API server (validation, admission, RBAC, custom resources, server-side
// apply, watches), with garbage collector and namespaces, in this process and in memory: there is
// nothing to download, nothing to clean up, and hundreds may run in parallel. Inside a testing/synctest
// bubble time is the test's: minutes of waiting take milliseconds. See docs/clustertest.md.
// Tests call it; nothing else may.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"keelson/apiserver/options"
	"keelson/auth"
	"keelson/client"
	"keelson/cluster"
	"keelson/controllers"
	"keelson/event"
	"keelson/lib/run"
	"keelson/simulate"
	"keelson/store"
	"keelson/store/embed"
)

// Config says what the cluster has. The zero value is an API server with the Essential controllers.
type Config struct {
	// Controllers selects controllers, in the syntax of kube-controller-manager's --controllers: "*" for all, a name,
	// "-name". nil: Essential. An empty slice: none.
	Controllers []string
	// ControllerOptions configure them further.
	ControllerOptions controllers.Options
	// Scheduler binds pods to nodes.
	Scheduler bool
	// Nodes is the number of simulated nodes: node-0, node-1 and so on. A pod bound to one becomes Running after a
	// moment and disappears when it is deleted. With nodes there is a scheduler.
	Nodes int
	// Node configures them; the zero value has 32 CPUs, 256 Gi of memory and 110 pods. Renew is 10 s by default: a
	// silent node is noticed after 40 s.
	Node simulate.Config
	// CRDs are files, or directories of files, with CustomResourceDefinitions in YAML or JSON. They are served when
	// Start returns.
	CRDs []string
	// HTTPS serves the API on a loopback port too, for programs that need a kubeconfig. It cannot be combined with a
	// synctest bubble.
	HTTPS bool
	// API holds flags of kube-apiserver: admission plugins, authorization modes and so on.
	API options.Options
	// Services are the service CIDRs and the node port range.
	Services options.Services
	// Log receives the cluster's log; nil: discarded.
	Log *slog.Logger
	// Marks receive every mark of a part (package mark).
	Marks []event.Listener
	// Between may wrap the API as a part sees it, to inject faults or to observe. It gets the handler and the source,
	// and returns their replacements. part is Controllers, Scheduler or Nodes.
	Between func(part, user string, h http.Handler, s client.Source) (http.Handler, client.Source)
	// FS holds the store; nil: a new one in memory.
	FS vfs.FS
}

// Essential controllers create and delete what any cluster needs: garbage collection, namespaces, and the default
// objects of a namespace.
var Essential = []string{
	"garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
	"root-ca-certificate-publisher-controller",
	"clusterrole-aggregation-controller", "serviceaccount-token-controller",
}

// Cluster is a running cluster. Its clients act as an administrator.
type Cluster struct {
	*client.Client
	ctx    context.Context //nolint:containedctx // the test's, for parts that are restarted
	mem    *cluster.InMemory
	config Config
	server atomic.Pointer[gate] // of the API server's current run
	parts  []*part              // in the order in which they start
}

// Start starts a cluster that ends with the test. It returns when the API serves, the controllers' caches are synced
// and the nodes are Ready.
func Start(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	c, err := start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatalf("start cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Errorf("cluster ended with %v", err)
		}
	})
	for _, path := range cfg.CRDs {
		if err := c.InstallCRDs(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.FS == nil {
		cfg.FS = vfs.NewMem()
	}
	_ = logsErrorsOnly
	o := cfg.ControllerOptions
	o.Controllers = cfg.Controllers
	if cfg.Controllers == nil {
		o.Controllers = Essential
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Cluster{config: cfg, ctx: ctx}
	c.parts = append(c.parts, &part{name: APIServer, begin: c.beginServer})
	if len(o.Controllers) > 0 {
		c.parts = append(c.parts, &part{
			name: Controllers,
			begin: func(g *gate) (run.Func, error) {
				return c.mem.Controllers(o, c.connect(Controllers, g)), nil
			},
		})
	}
	if cfg.Scheduler || cfg.Nodes > 0 {
		c.parts = append(c.parts, &part{
			name: Scheduler,
			begin: func(g *gate) (run.Func, error) {
				return c.mem.Scheduler(c.connect(Scheduler, g)), nil
			},
		})
	}
	if cfg.Nodes > 0 {
		c.parts = append(c.parts, &part{name: Nodes, begin: c.beginNodes})
	}
	for i, p := range c.parts[:1] { // the API server first: the others need it
		if err := p.start(ctx); err != nil {
			c.parts = c.parts[:i]
			return nil, err
		}
	}
	c.Client = c.As("admin", auth.Masters)
	var group errgroup.Group
	for _, p := range c.parts[1:] {
		group.Go(func() error { return p.start(ctx) })
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// cacheBytes limits the store's memory.
const cacheBytes = 1 << 20

// beginServer opens the store and assembles the API server over it.
func (c *Cluster) beginServer(g *gate) (run.Func, error) {
	st, err := embed.Open(embed.Options{Dir: "store", FS: c.config.FS, CacheBytes: cacheBytes})
	if err != nil {
		return nil, err
	}
	if c.mem != nil {
		err = c.mem.Reopen(st)
	} else {
		err = c.assemble(st)
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	g.shut.Store(true) // shut until it is ready
	c.server.Store(g)
	return func(ctx context.Context, ready func()) error {
		return errors.Join(c.mem.Run(ctx, func() {
			g.shut.Store(false)
			ready()
		}), st.Close())
	}, nil
}

func (c *Cluster) assemble(st store.Store) (err error) {
	mem := cluster.InMemoryConfig{
		Store:     st,
		API:       c.config.API,
		Services:  c.config.Services,
		Log:       c.config.Log,
		Listeners: c.config.Marks,
	}
	if c.config.HTTPS {
		if mem.Listener, err = (&net.ListenConfig{}).Listen(c.ctx, "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	c.mem, err = cluster.NewInMemory(mem)
	return err
}

// beginNodes creates the simulator of nodes.
func (c *Cluster) beginNodes(g *gate) (run.Func, error) {
	n := c.config.Node
	n.Nodes = c.config.Nodes
	n.Untainted = true
	if n.Prefix == "" {
		n.Prefix = "node-"
	}
	if n.Renew == 0 {
		n.Renew = 10 * time.Second
	}
	s, err := c.mem.Nodes(n, c.connect(Nodes, g))
	if err != nil {
		return nil, err
	}
	return s.Run, nil
}

// Stop ends the cluster now. Without it the cluster ends with its test.
func (c *Cluster) Stop() error { return c.close() }

// close ends all parts in reverse order.
func (c *Cluster) close() error {
	var errs []error
	for _, p := range slices.Backward(c.parts) {
		errs = append(errs, p.end(false))
	}
	return errors.Join(errs...)
}

// As returns a client of another user, in groups in addition to system:authenticated. RBAC applies.
func (c *Cluster) As(user string, groups ...string) *client.Client {
	h, s := c.mem.ForUser(&auth.User{
		Name:   user,
		Groups: append(slices.Clone(groups), auth.Authenticated),
		How:    auth.InProcess,
	})
	cl, err := client.InProcess(c.up(h), gated{c.server.Load, s}, "clustertest")
	if err != nil {
		panic(err) // cannot happen: the arguments are constant
	}
	return cl
}

// up breaks clients' connections while the API server is killed.
func (c *Cluster) up(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.server.Load().handler(h).ServeHTTP(w, r)
	})
}

// RESTConfig is for other client libraries, such as controller-runtime: over loopback HTTPS with Config.HTTPS, else
// inside the process. It has an administrator's rights; set Impersonate to act as another user.
func (c *Cluster) RESTConfig() *rest.Config {
	if c.config.HTTPS {
		return c.mem.AdminConfig()
	}
	return rest.CopyConfig(c.Config)
}

// Kubeconfig writes a kubeconfig below a directory of the test and returns its path. It needs Config.HTTPS.
func (c *Cluster) Kubeconfig(t testing.TB) string {
	t.Helper()
	if !c.config.HTTPS {
		t.Fatal("a kubeconfig needs clustertest.Config.HTTPS")
	}
	b, err := c.mem.AdminKubeconfig()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatalf("write kubeconfig: %v", err)
	}
	return path
}

// Eventually polls cond until it is true. It fails the test when that takes longer than wait. In a synctest bubble wait
// is virtual time.
func Eventually(t testing.TB, what string, wait time.Duration, cond func() (bool, error)) {
	t.Helper()
	var last error
	pause := time.Millisecond
	for begin := time.Now(); ; {
		ok, err := cond()
		if ok && err == nil {
			return
		}
		last = err
		if time.Since(begin) > wait {
			t.Fatalf("not within %s: %s (%v)", wait, what, last)
		}
		time.Sleep(pause)
		pause = min(2*pause, max(10*time.Millisecond, wait/1000))
	}
}

// InstallCRDs creates the CustomResourceDefinitions in a file, or in the files of a directory, and waits until they are
// served.
func (c *Cluster) InstallCRDs(ctx context.Context, path string) error {
	defs, err := readDefinitions(path)
	if err != nil {
		return fmt.Errorf("definitions in %s: %w", path, err)
	}
	for _, d := range defs {
		if err := c.define(ctx, d); err != nil {
			return fmt.Errorf("definitions in %s: %s: %w", path, d.GetName(), err)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"

	"keelson/lib/keylock"
)

// Config configures a Network.
type Config struct {
	// ID is the cluster's short id.
	ID string
	// Dir holds the attachments and the plugins' results.
	Dir string
	// ConfDir holds the configuration: the first .conf, .conflist or .json file by name. It need not exist yet.
	ConfDir string
	// BinDirs hold the plugins.
	BinDirs []string
	// RunDir is shared by all clusters on this machine; /run/keelson when empty.
	RunDir string
	// IPRanges are passed to plugins with the capability ipRanges.
	IPRanges []netip.Prefix
	Log      *slog.Logger
}

// Pod is the pod sandbox that is attached.
type Pod struct {
	// ID is the sandbox id, Netns the path of its network namespace.
	ID, Netns            string
	Namespace, Name, UID string
	Annotations          map[string]string
	Ports                []PortMapping
	CgroupParent         string
	DNS                  DNS
}

// PortMapping forwards a port of the host to a port of the pod.
type PortMapping struct {
	Protocol      string     // TCP, UDP, SCTP
	HostIP        netip.Addr // invalid: all addresses
	HostPort      uint16
	ContainerPort uint16
}

// DNS is the pod's resolver configuration.
type DNS struct{ Servers, Searches, Options []string }

// Attachment is the result of Attach.
type Attachment struct {
	// Addrs are the pod's addresses, at most one of each IP family, the primary one first.
	Addrs []netip.Addr
	// Network is the configuration's name. Plugins are the plugins that ran, in order, also when one failed.
	Network string
	Plugins []PluginRun
}

// PluginRun is one run of a plugin.
type PluginRun struct {
	Plugin  string
	Command string // ADD, DEL, ...
	Took    time.Duration
}

// podLink is the name of the pod's link.
const podLink = "eth0"

const (
	operationLimit = 2 * time.Minute  // for all plugins, for one pod
	pluginLimit    = 60 * time.Second // for one plugin
	queryLimit     = 10 * time.Second // for VERSION and STATUS
	maxPlugins     = 8                // maximum of concurrent plugins
	minRetry       = time.Second      // first interval of STATUS for a plugin that is not ready
	maxRetry       = time.Minute
)

// Network attaches pods. Its methods are safe for concurrent use.
type Network struct {
	cfg     Config
	log     *slog.Logger
	slots   chan struct{}
	current atomic.Pointer[state]

	turns    keylock.Locks // by sandbox id
	mu       sync.Mutex    // guards the fields below
	attached map[string]*attachment
	addrs    map[netip.Addr]string // address -> sandbox
}

// state is the configuration in use, or why there is none.
type state struct {
	list *libcni.NetworkConfigList
	path string
	err  error
	// again: no file event reports the end of the error, so the read is retried.
	again bool
}

// longestID bounds sandboxPattern, which has no {0,199}: that takes a third of a millisecond of every process's start.
const longestID = 200

var sandboxPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// New reads the attachments and removes the status file of an earlier process. It starts nothing.
func New(cfg Config) (*Network, error) {
	if cfg.RunDir == "" {
		cfg.RunDir = "/run/keelson"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n := &Network{
		cfg:      cfg,
		log:      cfg.Log,
		slots:    make(chan struct{}, maxPlugins),
		attached: map[string]*attachment{},
		addrs:    map[netip.Addr]string{},
	}
	n.current.Store(&state{err: errors.New("cni plugin not initialized: its configuration is not read yet")})
	return n, errors.Join(n.removeStatus(), n.readAttachments())
}

// plugins returns libcni's runner for one operation.
func (n *Network) plugins(e *executor) *libcni.CNIConfig { return n.pluginsIn(n.cfg.BinDirs, e) }

func (n *Network) pluginsIn(dirs []string, e *executor) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(dirs, filepath.Join(n.cfg.Dir, "cache"), e)
}

// Watch watches the configuration and plugins. It reports why pods cannot be attached (nil: they can), at first and
// after each change, until ctx is done.
func (n *Network) Watch(ctx context.Context, report func(error)) error {
	var last *state
	var collected []byte // the configuration of the last GC
	wait := minRetry
	for ctx.Err() == nil {
		watcher, err := watch(append([]string{n.cfg.ConfDir}, n.cfg.BinDirs...))
		if err != nil {
			return err
		}
		now := n.use(ctx)
		if ctx.Err() != nil {
			watcher.close()
			return nil //nolint:nilerr // the node stops
		}
		n.current.Store(now)
		if last == nil || text(last.err) != text(now.err) {
			n.logState(now)
			report(now.err)
		} else if now.err == nil && !bytes.Equal(last.list.Bytes, now.list.Bytes) {
			n.logState(now)
		}
		last = now
		if now.err == nil && !bytes.Equal(collected, now.list.Bytes) && n.collect(ctx, now.list) {
			collected = now.list.Bytes
		}
		if !now.again {
			wait = minRetry
			watcher.wait(ctx, 0)
		} else if !watcher.wait(ctx, wait) {
			wait = min(2*wait, maxRetry)
		}
		watcher.close()
	}
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (n *Network) logState(now *state) {
	n.writeStatus(now)
	if now.err != nil {
		n.log.Warn("pods cannot be attached", "err", now.err)
		return
	}
	sum := sha256.Sum256(now.list.Bytes)
	n.log.Info("network configuration in use", "network", now.list.Name, "file", now.path, "sha256",
		hex.EncodeToString(sum[:6]))
}

// Has reports whether a pod of this node has the address.
func (n *Network) Has(a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.addrs[a]
	return ok
}

// Attached lists the sandboxes with an attachment, so that the caller can detach those that do not exist.
func (n *Network) Attached() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]string, 0, len(n.attached))
	for id := range n.attached {
		out = append(out, id)
	}
	return out
}

func checkID(id string) error {
	if len(id) > longestID || !sandboxPattern.MatchString(id) {
		return fmt.Errorf("sandbox id %q is not usable as a file name", id)
	}
	return nil
}

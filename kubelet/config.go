// SPDX-License-Identifier: Apache-2.0

// Package kubelet makes a machine a node of the cluster: it registers the node, runs the pods that are bound to it
// through a CRI runtime, reports how they are, and serves their logs and streams to the API server. cluster runs one,
// in process or as a process of its own. It talks to the API through package client only, and to containers through
// package cri only.
//
// Rooms: pod (the worker of one pod and its decisions), status, probe, volume, image, translate (pod -> CRI),
// runtimestate (CRI -> pod), refs, node, staticpod, logs, server, deviceplugin and dra (devices), podresources. This
// package wires them: New makes each part once, in one straight line. Shared state of the parts is made first:
// node.Self (the machine, the Node object, the request to write its status) and workers (the table of pod workers).
// podSync fills the table from the API, static pod files and the runtime; admission decides which pods may run.
package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"keelson/client"
	"keelson/cri"
	"keelson/event"
	"keelson/kubelet/eviction"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/reach"
	"keelson/lib/logrotate"
	"keelson/lib/systemd"
)

// Config says what a kubelet is. Zero values are the defaults named at each field.
type Config struct {
	NodeName string
	Client   *client.Client
	Runtime  cri.Client
	// RootDir is the kubelet's own tree: pods/<uid>/..., memory/.
	RootDir string
	// VolumesDir holds the local volumes that the cluster provisions on this node; empty: it has none.
	VolumesDir string
	// LogDir holds the pods' log directories; RootDir/logs when empty.
	LogDir string

	Serving
	NodeObject
	PodDefaults
	ImagePolicy
	Reach

	// Eviction says when pods are ended to protect the node.
	Eviction eviction.Config
	// Watchdog is notified while the kubelet works.
	Watchdog systemd.Watchdog

	Version string // v1.37.2+keelson
	Marks   *event.Recorder
	Log     *slog.Logger
}

// Serving says where the kubelet's server listens, who may call it, and what it serves in addition to pods.
type Serving struct {
	// Address and Port are where the server listens. Port 0 takes any; node.status says which. An invalid Address means
	// 127.0.0.1.
	Address netip.Addr
	Port    int
	// FallbackPort lets the server listen on any free port if Port is in use.
	FallbackPort bool
	// OnListen is called with the server's address when it listens; may be nil.
	OnListen func(net.Addr)
	// Tunnel brings the server further connections; nil: there are none but those to its port.
	Tunnel net.Listener
	// TLS is the server's certificate. Without one there is no server.
	TLS *tls.Config
	// TLSCurves are the key exchanges that the server takes; none: Go's default.
	TLSCurves []tls.CurveID
	// ClientCA signs the clients' certificates; it is asked at each connection and never returns nil. AllowedNames are
	// the common names that may call. Empty: any that ClientCA signed.
	ClientCA     func() *x509.CertPool
	AllowedNames []string
	// ByToken admits callers by the token of a service account; see server.Config. nil: no token is accepted.
	ByToken func(w http.ResponseWriter, r *http.Request, verb string, subresources []string) bool
	// Pages serves /statusz, /flagz and /configz; nil: they are not served.
	Pages http.Handler
	// Metrics are those of the program, which /metrics has too.
	Metrics []prometheus.Collector
}

// NodeObject has the contents of the Node object, and how often it is written.
type NodeObject struct {
	// NodeIPs are the node's addresses, which are those of pods on the host's network too; Address when empty.
	NodeIPs []netip.Addr
	// Hostname is the node's host name; NodeName when empty.
	Hostname string
	PodCIDRs []string
	// Annotations are kept on the node object. An empty value takes the annotation away.
	Annotations  map[string]string
	Labels       map[string]string
	Taints       []corev1.Taint
	KubeReserved corev1.ResourceList
	MaxPods      int // 110
	// RegisterNode makes the Node object when it is not there.
	RegisterNode bool
	// LeaseInterval is how often the node's lease is renewed; 10 s. The lease's duration is four intervals, at least 40
	// s.
	LeaseInterval time.Duration
	// StatusInterval is how often the node's status is written even when nothing changed; 5 minutes.
	StatusInterval time.Duration
}

// PodDefaults is what pods get from their node, and what bounds them.
type PodDefaults struct {
	ClusterDomain string   // cluster.local
	ClusterDNS    []string // none: pods use the node's resolvers
	ResolvConf    string   // /etc/resolv.conf, or what systemd-resolved has behind it
	HostsFile     string   // /etc/hosts
	StaticPodDir  string   // none: no static pods
	// where the kernel says whether it enforces AppArmor: /sys/module/apparmor/parameters/enabled
	AppArmorFile string
	CgroupRoot   string // parent of the pods' cgroups
	// PodMaxPids is how many processes and threads a pod may have; 0: 4096, negative: no limit.
	PodMaxPids int64
	// AllowedUnsafeSysctls are kernel parameters, or prefixes that end with *, that pods may set in addition to the
	// safe ones.
	AllowedUnsafeSysctls []string
	// ContainerLogs bounds the log of each container; what is zero is Kubernetes' default (10Mi, 5 files).
	ContainerLogs logrotate.Policy
	// StatusBatchPeriod is how long a pod's status may be delayed while more changes of it are expected; 500 ms.
	StatusBatchPeriod time.Duration
	// CrashBackOffMax is the longest back-off of a container that ends again and again: 1 s to 5 minutes, the default.
	CrashBackOffMax time.Duration
}

// ImagePolicy says how images are pulled, who may use those that are there, and how long they stay.
type ImagePolicy struct {
	ParallelPulls int // 3
	// ImagePullCredentialsVerificationPolicy says for which images on the node a pod needs credentials that can pull
	// them; NeverVerifyPreloadedImages. PreloadedImagesVerificationAllowlist are the images of the policy
	// NeverVerifyAllowlistedImages.
	ImagePullCredentialsVerificationPolicy string
	PreloadedImagesVerificationAllowlist   []string
	// ImageMaxAge is how long an image stays that nothing uses; 0: until its space is needed.
	ImageMaxAge time.Duration
}

// Reach has the sources of package reach.
type Reach struct {
	// Paths reports where the node's packets go, Rules what its service proxy does; nil: unknown.
	Paths reach.Paths
	Rules reach.Rules
}

func (c *Config) setDefaults() error {
	switch {
	case c.NodeName == "":
		return errors.New("no node name")
	case c.Client == nil:
		return errors.New("no client")
	case c.Runtime.Runtime == nil || c.Runtime.Image == nil:
		return errors.New("no container runtime")
	case c.RootDir == "":
		return errors.New("no root directory")
	}
	abs, err := filepath.Abs(c.RootDir)
	if err != nil {
		return fmt.Errorf("root directory %s: %w", c.RootDir, err)
	}
	c.RootDir = abs
	if c.LogDir == "" {
		c.LogDir = filepath.Join(c.RootDir, "logs")
	}
	if !c.Address.IsValid() {
		c.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if len(c.NodeIPs) == 0 {
		c.NodeIPs = []netip.Addr{c.Address}
	}
	for p, def := range map[*string]string{
		&c.Hostname:      c.NodeName,
		&c.ClusterDomain: "cluster.local",
		&c.HostsFile:     "/etc/hosts",
		&c.AppArmorFile:  appArmorFile,
		&c.Version:       "v1.37.2+keelson",
	} {
		if *p == "" {
			*p = def
		}
	}
	if c.MaxPods == 0 {
		c.MaxPods = 110
	}
	if c.ParallelPulls == 0 {
		c.ParallelPulls = 3
	}
	if c.StatusBatchPeriod == 0 {
		c.StatusBatchPeriod = 500 * time.Millisecond
	}
	if c.CrashBackOffMax == 0 {
		c.CrashBackOffMax = decide.CrashMax
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return os.MkdirAll(c.RootDir, 0o750)
}

// component is the kubelet's name in marks.
func (c *Config) component() string { return "kubelet " + c.NodeName }

func (c *Config) nodeIPs() []string {
	ips := make([]string, 0, len(c.NodeIPs))
	for _, ip := range c.NodeIPs {
		ips = append(ips, ip.String())
	}
	return ips
}

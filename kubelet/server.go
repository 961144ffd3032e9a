// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/logs"
	"keelson/kubelet/reach"
	"keelson/kubelet/server"
	"keelson/kubelet/translate"
)

// listener is a bound server.
type listener struct {
	l   net.Listener
	srv *server.Server
}

// Serve answers until ctx is done.
func (l *listener) Serve(ctx context.Context) error { return l.srv.Serve(ctx, l.l) }

// port returns the port that the server has bound; that of the configuration without a server.
func (l *listener) port(configured int) int {
	if l == nil {
		return configured
	}
	return l.l.Addr().(*net.TCPAddr).Port
}

// serve runs the server at its port and at the tunnel, if there is one.
func (k *Kubelet) serve(ctx context.Context, wg *sync.WaitGroup, srv *listener, failed chan<- error) {
	if srv == nil {
		return
	}
	wg.Go(func() { failed <- srv.Serve(ctx) })
	if k.cfg.Tunnel != nil {
		wg.Go(func() { failed <- srv.srv.Serve(ctx, k.cfg.Tunnel) })
	}
}

// listen binds the server's port; nil without a certificate.
func (k *Kubelet) listen() (*listener, error) {
	if k.cfg.TLS == nil {
		return nil, nil
	}
	addr := netip.AddrPortFrom(k.cfg.Address, uint16(k.cfg.Port)) // a port
	tcpListener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if k.cfg.FallbackPort && errors.Is(err, syscall.EADDRINUSE) {
		k.cfg.Log.Info("the usual port is used by another program, takes a free one", "port", k.cfg.Port)
		tcpListener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(k.cfg.Address, 0)))
	}
	if err != nil {
		return nil, fmt.Errorf("kubelet: listen on %s: %w", addr, err)
	}
	if k.cfg.OnListen != nil {
		k.cfg.OnListen(tcpListener.Addr())
	}
	return &listener{
		l: tcpListener,
		srv: server.New(server.Config{
			TLS:          k.cfg.TLS,
			TLSCurves:    k.cfg.TLSCurves,
			ClientCA:     k.cfg.ClientCA,
			AllowedNames: k.cfg.AllowedNames,
			ByToken:      k.cfg.ByToken,
			Pods:         k.workers,
			Runtime:      k.cfg.Runtime.Runtime,
			DialStreams:  k.cfg.Runtime.DialStreams,
			NodeName:     k.cfg.NodeName,
			Reach:        k.newReachProber(),
			Stats:        http.HandlerFunc(k.stats.Summary),
			LogDir:       k.cfg.LogDir,
			Pages:        k.cfg.Pages,
			Log:          k.cfg.Log,
			Metrics: map[string]http.Handler{
				"":          k.nodeMetrics(),
				"/probes":   k.metrics.Probes(),
				"/resource": http.HandlerFunc(k.stats.Metrics),
				"/cadvisor": http.HandlerFunc(k.stats.Cadvisor),
			},
		}),
	}, nil
}

// newReachProber makes the prober of network paths of this node's pods.
func (k *Kubelet) newReachProber() *reach.Prober {
	return reach.New(reach.Config{
		Node:       k.cfg.NodeName,
		Runtime:    k.cfg.Runtime.Runtime,
		Resolver:   k.resolver,
		ClusterDNS: k.cfg.ClusterDNS,
		Domain:     k.cfg.ClusterDomain,
		Paths:      k.cfg.Paths,
		Rules:      k.cfg.Rules,
	})
}

// resolver returns a pod's resolver configuration.
func (k *Kubelet) resolver(p *corev1.Pod) (*runtimeapi.DNSConfig, error) {
	host, err := translate.HostDNS(os.ReadFile, k.cfg.ResolvConf)
	if err != nil {
		return nil, err
	}
	dns, _ := translate.DNS(p, host, k.cfg.ClusterDNS, k.cfg.ClusterDomain)
	return dns, nil
}

// nodeMetrics serves the metrics of the node.
func (k *Kubelet) nodeMetrics() http.Handler {
	return k.metrics.Handler(slices.Concat(k.cfg.Metrics, []prometheus.Collector{
		nodeMetrics{name: k.cfg.NodeName, workers: k.workers},
		k.stats, k.plugins.podResources, k.plugins.podsAPI,
		k.plugins.claims, k.plugins.devices, k.images,
	})...)
}

// builtinRuntime is the name of the runtime that rotates logs itself.
const builtinRuntime = "keelson"

// rotateLogs keeps the logs of a runtime that does not do so itself from growing without bound, until ctx is done.
func (k *Kubelet) rotateLogs(ctx context.Context) {
	if k.cfg.ContainerLogs.MaxSize < 0 {
		return
	}
	rotator := logs.Rotator{
		Policy: k.cfg.ContainerLogs,
		Reopen: func(ctx context.Context, id string) error {
			_, err := k.cfg.Runtime.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{
				ContainerId: id,
			})
			return err
		},
	}
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, w := range k.workers.all() {
			for c := range w.Observed().Running() {
				if err := rotator.Check(ctx, c.ID, c.LogPath); err != nil && ctx.Err() == nil {
					k.cfg.Log.Warn("rotate container log", "container", c.ID, "err", err)
				}
			}
		}
	}
}

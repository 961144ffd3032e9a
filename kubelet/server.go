// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/logs"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/reach"
	"keelson/kubelet/server"
)

// listener is a bound server.
type listener struct {
	l   net.Listener
	srv *server.Server
}

// Serve answers until ctx is done.
func (l *listener) Serve(ctx context.Context) error { return l.srv.Serve(ctx, l.l) }

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

// listen binds the server's port and tells the node which it is; nil without a certificate.
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
	k.node.SetPort(tcpListener.Addr().(*net.TCPAddr).Port)
	if k.cfg.OnListen != nil {
		k.cfg.OnListen(tcpListener.Addr())
	}
	return &listener{
		l: tcpListener,
		srv: server.New(server.Config{
			TLS:          k.cfg.TLS,
			ClientCA:     k.cfg.ClientCA,
			AllowedNames: k.cfg.AllowedNames,
			ByToken:      k.cfg.ByToken,
			Pods:         podTable{k},
			Runtime:      k.cfg.Runtime.Runtime,
			DialStreams:  k.cfg.Runtime.DialStreams,
			NodeName:     k.cfg.NodeName,
			Reach:        k.newReachProber(),
			Stats:        http.HandlerFunc(k.stats.Summary),
			LogDir:       k.cfg.LogDir,
			Pages:        k.cfg.Pages,
			Log:          k.cfg.Log,
			Metrics: map[string]http.Handler{
				"":          k.metrics.Handler(nodeMetrics{k}, k.stats, k.podResources, k.devices, k.devicePlugins),
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
		Resolver:   k.env.Resolver,
		ClusterDNS: k.cfg.ClusterDNS,
		Domain:     k.cfg.ClusterDomain,
		Paths:      k.cfg.Paths,
		Rules:      k.cfg.Rules,
	})
}

// podTable shows the workers' pods to the server.
type podTable struct{ k *Kubelet }

// Find is the pod of this name, the living one when a name is taken twice. A static pod is found by its mirror's uid
// too.
func (t podTable) Find(namespace, name, uid string) *corev1.Pod {
	var found *corev1.Pod
	for _, w := range t.k.allWorkers() {
		p := w.Pod()
		if p.Namespace != namespace || p.Name != name || uid != "" && string(p.UID) != uid && !podinfo.Static(p) {
			continue
		}
		if found == nil || p.DeletionTimestamp == nil {
			found = p
		}
	}
	return found
}

// All lists the node's pods.
func (t podTable) All() []*corev1.Pod {
	var out []*corev1.Pod
	for _, w := range t.k.allWorkers() {
		out = append(out, w.Pod())
	}
	return out
}

// builtinRuntime is the name of the runtime that rotates logs itself.
const builtinRuntime = "keelson"

// rotateLogs keeps the logs of a runtime that does not do so itself from growing without bound, until ctx is done.
func (k *Kubelet) rotateLogs(ctx context.Context) {
	if k.env.RuntimeName == builtinRuntime {
		return
	}
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
		for _, w := range k.allWorkers() {
			for c := range w.Observed().Running() {
				if err := rotator.Check(ctx, c.ID, c.LogPath); err != nil && ctx.Err() == nil {
					k.cfg.Log.Warn("rotate container log", "container", c.ID, "err", err)
				}
			}
		}
	}
}

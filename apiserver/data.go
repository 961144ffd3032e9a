// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/api/gates"
	"keelson/apiserver/access"
	"keelson/apiserver/kubelets"
	"keelson/apiserver/outbound"
	"keelson/apiserver/resources"
	"keelson/apiserver/tunnels"
	"keelson/apiserver/usage"
	"keelson/apiserver/watchcache"
	"keelson/store"
)

// DataConfig holds the settings and dependencies of a server's data.
type DataConfig struct {
	// Store keeps all objects. The server does not close it.
	Store store.Store
	// Outbound connects to other servers.
	Outbound *outbound.Egress
	// Kubelet returns the client certificate for kubelets and the CAs of their certificates, for each connection; nil:
	// kubelets cannot be called.
	Kubelet func() *tls.Config
	// Gates are the enabled feature gates.
	Gates gates.On
	// InProcess are the components that live as long as this server, by the names of their leader election leases.
	InProcess map[string]bool
	// Decision returns the stored scheduling decision of a pod; nil: none are stored. The server sets the metadata.
	Decision func(pod types.UID) *decisions.PodDecision
	Log      *slog.Logger
}

// Data are the objects of a server, and what reads and writes them. It is the first half of the server: authentication,
// authorization and admission are made of it, and New makes the other half of them all. Nothing runs yet.
type Data struct {
	// Served are the resources; New adds the custom ones to them.
	Served *resources.Served
	Reader *access.Reader
	Writer *access.Writer

	store      *measuredStore
	cache      *watchcache.Cache
	outbound   *outbound.Egress
	tunnels    *tunnels.Tunnels
	kubelets   *kubelets.Kubelets
	usage      *usage.Collector
	collectors []prometheus.Collector
}

// Open makes the data of a server.
func Open(config DataConfig) *Data {
	log := cmp.Or(config.Log, slog.New(slog.DiscardHandler))
	measured := withStorageMetrics(config.Store)
	cache := watchcache.New(watchcache.Config{Store: measured, Log: log})
	rows := resources.Table(config.Gates)
	stored := resources.Open(rows, cache)
	// Computed objects and the connections to kubelets need stored objects only.
	reader := access.NewReader(resources.NewServed(stored))
	opened := newTunnels(reader, log)
	nodes := kubelets.New(reader, config.Outbound, opened, config.Kubelet)
	collector := usage.New(func(ctx context.Context, node string) (*http.Response, error) {
		return nodes.Get(ctx, node, "metrics", "resource")
	}, log)
	computed := resources.Compute(rows, func(kind schema.GroupResource) resources.Provider {
		switch kind.Resource {
		case "componentstatuses":
			return newComponents(config.InProcess, measured.Health, reader)
		case "poddecisions":
			return podDecisions{reader, config.Decision}
		case "nodes":
			return usage.Nodes{Reader: reader, Collector: collector}
		}
		return usage.Pods{Reader: reader, Collector: collector}
	})
	served := resources.NewServed(slices.Concat(stored, computed))
	return &Data{
		Served:   served,
		Reader:   access.NewReader(served),
		Writer:   access.NewWriter(served),
		store:    measured,
		cache:    cache,
		outbound: config.Outbound,
		tunnels:  opened,
		kubelets: nodes,
		usage:    collector,
		collectors: slices.Concat([]prometheus.Collector{measured.duration}, config.Outbound.Collectors(),
			opened.Collectors()),
	}
}

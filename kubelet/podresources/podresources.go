// SPDX-License-Identifier: Apache-2.0

// Package podresources serves the PodResources API: monitoring agents (dcgm-exporter, topology exporters) ask it which
// container has which devices. It listens on pod-resources/kubelet.sock of the kubelet's directory and answers from the
// state of the device managers; it allocates nothing, and calls neither plugins nor drivers. The kubelet runs one
// Server.
//
// Only root can connect. Requests and responses are limited: 100 requests a second as in Kubernetes, and 16 MiB a
// response.
package podresources

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	apiv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/nodesocket"
	"keelson/kubelet/rootdir"
)

const (
	// queriesPerSecond and burst are Kubernetes' limits of all requests together.
	queriesPerSecond = 100
	burst            = 10
	// maxRequest and maxResponse limit messages; clients accept 4 or 16 MiB.
	maxRequest  = 64 << 10
	maxResponse = 16 << 20
	// maxStreams limits what a client keeps open.
	maxStreams = 16
	// connectTimeout is the timeout of a client's HTTP/2 handshake.
	connectTimeout = 10 * time.Second
	socketDir      = "pod-resources" // within the kubelet's directory
	socket         = "kubelet.sock"
)

// Pods are the pods of the node.
type Pods interface {
	// Active are the pods of which a container runs or may still run. All are also those that have ended, as long as
	// the API has them.
	Active() []*corev1.Pod
	All() []*corev1.Pod
}

// Devices are those of device plugins.
type Devices interface {
	// Devices are what a container has, Allocatable the healthy ones of the node. Both are in order.
	Devices(uid, container string) []deviceplugin.Device
	Allocatable() []deviceplugin.Device
}

// Claims are the ResourceClaims of pods.
type Claims interface {
	// Claims are those of a container that are prepared.
	Claims(p *corev1.Pod, c *corev1.Container) []dra.Claim
}

// Config is what a Server answers from.
type Config struct {
	// Dir is the kubelet's directory.
	Dir     rootdir.Dir
	Pods    Pods
	Devices Devices
	Claims  Claims
}

// Server is made by New.
type Server struct {
	cfg     Config
	limiter *rate.Limiter
	metrics
}

// New returns a server. It starts nothing.
func New(c Config) *Server {
	return &Server{cfg: c, limiter: rate.NewLimiter(queriesPerSecond, burst), metrics: newMetrics()}
}

// Run serves until ctx is done. The socket is removed then.
func (s *Server) Run(ctx context.Context) error {
	listener, err := nodesocket.Listen(s.cfg.Dir, socketDir, socket)
	if err != nil {
		return fmt.Errorf("pod resources: %w", err)
	}
	g := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(2*maxResponse), grpc.MaxConcurrentStreams(maxStreams),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(connectTimeout), grpc.UnaryInterceptor(s.rateLimit),
	)
	apiv1.RegisterPodResourcesListerServer(g, &v1Server{Server: s})
	apiv1alpha1.RegisterPodResourcesListerServer(g, &v1alpha1Server{Server: s})
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	if err := g.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("pod resources: serve: %w", err)
	}
	return nil
}

// rateLimit rejects requests above the rate, with Kubernetes' message.
func (s *Server) rateLimit(ctx context.Context, q any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !s.limiter.Allow() {
		return nil, grpcstatus.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return next(ctx, q)
}

// metrics are those of Kubernetes' kubelet, with its names.
type metrics struct {
	total                                *prometheus.CounterVec
	list, listErrors                     *prometheus.CounterVec
	get, getErrors                       *prometheus.CounterVec
	getAllocatable, getAllocatableErrors *prometheus.CounterVec
}

func newMetrics() metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet",
			Name:      "pod_resources_endpoint_" + name,
			Help:      "[ALPHA] " + help + " Broken down by server api version.",
		}, []string{"server_api_version"})
	}
	return metrics{
		total: counter("requests_total", "Cumulative number of requests to the PodResource endpoint."),
		list:  counter("requests_list", "Number of requests to the PodResource List endpoint."),
		listErrors: counter("errors_list",
			"Number of requests to the PodResource List endpoint which returned error."),
		get: counter("requests_get", "Number of requests to the PodResource Get endpoint."),
		getErrors: counter("errors_get",
			"Number of requests to the PodResource Get endpoint which returned error."),
		getAllocatable: counter("requests_get_allocatable",
			"Number of requests to the PodResource GetAllocatableResources endpoint."),
		getAllocatableErrors: counter("errors_get_allocatable",
			"Number of requests to the PodResource GetAllocatableResources endpoint which returned error."),
	}
}

func (c *metrics) all() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{
		c.total, c.list, c.listErrors, c.get, c.getErrors, c.getAllocatable, c.getAllocatableErrors,
	}
}

// Describe sends the descriptions of the metrics.
func (c *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range c.all() {
		v.Describe(ch)
	}
}

// Collect sends the metrics.
func (c *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, v := range c.all() {
		v.Collect(ch)
	}
}

// SPDX-License-Identifier: Apache-2.0

package podsapi

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// metrics count the requests, with the names of Kubernetes' kubelet.
type metrics struct {
	total   *prometheus.CounterVec
	byCalls map[string]*prometheus.CounterVec
}

func newMetrics() metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet",
			Name:      "pod_requests_" + name,
			Help:      "[ALPHA] " + help + " Broken down by server api version and status code.",
		}, []string{"server_api_version", "status_code"})
	}
	call := func(name string) *prometheus.CounterVec {
		return counter(strings.ToLower(name)+"_total", "Number of requests to the PodsAPI "+name+" endpoint.")
	}
	return metrics{
		total: counter("total", "Cumulative number of requests to the PodsAPI endpoint."),
		byCalls: map[string]*prometheus.CounterVec{
			podsv1alpha1.Pods_ListPods_FullMethodName:  call("List"),
			podsv1alpha1.Pods_GetPod_FullMethodName:    call("Get"),
			podsv1alpha1.Pods_WatchPods_FullMethodName: call("Watch"),
		},
	}
}

func (c *metrics) count(method string, err error) {
	code := grpcstatus.Code(err).String()
	c.total.WithLabelValues("v1alpha1", code).Inc()
	if of := c.byCalls[method]; of != nil {
		of.WithLabelValues("v1alpha1", code).Inc()
	}
}

func (c *metrics) countUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	answer, err := next(ctx, request)
	c.count(info.FullMethod, err)
	return answer, err
}

func (c *metrics) countStream(
	server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
) error {
	err := next(server, stream)
	c.count(info.FullMethod, err)
	return err
}

// Describe sends the descriptions of the metrics.
func (c *metrics) Describe(ch chan<- *prometheus.Desc) {
	c.total.Describe(ch)
	for _, of := range c.byCalls {
		of.Describe(ch)
	}
}

// Collect sends the metrics.
func (c *metrics) Collect(ch chan<- prometheus.Metric) {
	c.total.Collect(ch)
	for _, of := range c.byCalls {
		of.Collect(ch)
	}
}

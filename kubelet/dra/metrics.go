// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"
)

// metrics are those of Kubernetes' kubelet, by its names.
type metrics struct {
	operations *prometheus.HistogramVec // of pods, by operation_name, is_error
	calls      *prometheus.HistogramVec // of drivers, by driver_name, method_name, grpc_status_code
	inUse      *prometheus.Desc
}

// anyDriver is the driver_name of all claims, whichever drivers have devices of them.
const anyDriver = "<any>"

func newMetrics() metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "dra",
			Name:      name,
			Help:      "[ALPHA] " + help,
			Buckets:   prometheus.ExponentialBucketsRange(.1, 40, 15), // a call may take 45 s
		}, labels)
	}
	return metrics{
		operations: histogram("operations_duration_seconds", "Latency histogram in seconds for the duration of "+
			"handling all ResourceClaims referenced by a pod when the pod starts "+
			"or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and "+
			"separated by the success of the operation. "+
			"The number of failed operations is provided through the histogram's overall count.", "operation_name",
			"is_error"),
		calls: histogram("grpc_operations_duration_seconds", "Duration in seconds of the DRA gRPC operations",
			"driver_name", "method_name", "grpc_status_code"),
		inUse: prometheus.NewDesc("dra_resource_claims_in_use", "[ALPHA] The number of ResourceClaims that are "+
			"currently in use on the node, by driver name (driver_name label value) "+
			"and across all drivers (special value "+anyDriver+" for driver_name). Note that the sum of all "+
			"by-driver counts is not the total number of in-use ResourceClaims because "+
			"the same ResourceClaim might use devices from different drivers. Instead, use the count for the "+
			anyDriver+" driver_name.", []string{"driver_name"}, nil),
	}
}

// operation observes the duration of preparing or unpreparing the claims of a pod.
func (m *metrics) operation(name string, begin time.Time, err *error) {
	m.operations.WithLabelValues(name, strconv.FormatBool(*err != nil)).Observe(time.Since(begin).Seconds())
}

// timed observes the duration of each call of a driver.
func (m *metrics) timed(driver string) grpc.DialOption {
	return grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, q, a any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		begin := time.Now()
		err := invoke(ctx, method, q, a, conn, opts...)
		m.calls.WithLabelValues(driver, method, grpcstatus.Code(err).String()).Observe(time.Since(begin).Seconds())
		return err
	})
}

// Describe sends the descriptions of the metrics.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	m.operations.Describe(ch)
	m.calls.Describe(ch)
	ch <- m.inUse
}

// Collect sends the metrics, with the number of claims in use.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	m.operations.Collect(ch)
	m.calls.Collect(ch)
	m.mu.Lock()
	in := map[string]int{anyDriver: len(m.claims)}
	for _, c := range m.claims {
		for _, name := range c.Drivers {
			in[name]++
		}
	}
	m.mu.Unlock()
	for name, n := range in {
		ch <- prometheus.MustNewConstMetric(m.inUse, prometheus.GaugeValue, float64(n), name)
	}
}

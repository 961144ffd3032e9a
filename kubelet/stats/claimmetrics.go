// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/csi"
)

// claimMetric is one of the metrics kubelet_volume_stats_*.
type claimMetric struct {
	desc *prometheus.Desc
	of   func(*csi.Usage) *int64
}

// claimMetrics are the metrics of claims' volumes, with names and help texts of Kubernetes' kubelet.
var claimMetrics = sync.OnceValue(func() []claimMetric {
	series := func(name, help string, of func(*csi.Usage) *int64) claimMetric {
		return claimMetric{prometheus.NewDesc("kubelet_volume_stats_"+name, "[ALPHA] "+help,
			[]string{"namespace", "persistentvolumeclaim"}, nil), of}
	}
	return []claimMetric{
		series("capacity_bytes", "Capacity in bytes of the volume", func(u *csi.Usage) *int64 { return u.Capacity }),
		series("available_bytes", "Number of available bytes in the volume", func(u *csi.Usage) *int64 {
			return u.Available
		}),
		series("used_bytes", "Number of used bytes in the volume", func(u *csi.Usage) *int64 { return u.Used }),
		series("inodes", "Maximum number of inodes in the volume", func(u *csi.Usage) *int64 { return u.Inodes }),
		series("inodes_free", "Number of free inodes in the volume", func(u *csi.Usage) *int64 { return u.InodesFree }),
		series("inodes_used", "Number of used inodes in the volume", func(u *csi.Usage) *int64 { return u.InodesUsed }),
	}
})

// Describe implements prometheus.Collector.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range claimMetrics() {
		ch <- m.desc
	}
}

// scrapeTimeout bounds the wait of a scrape for CSI drivers.
const scrapeTimeout = 5 * time.Second

// Collect implements prometheus.Collector. A claim that several pods use is reported once.
func (s *Source) Collect(ch chan<- prometheus.Metric) {
	if s.ClaimUsage == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		usage = map[types.NamespacedName]*csi.Usage{}
	)
	for _, p := range s.Pods() {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
				continue
			}
			wg.Go(func() { s.claimUsage(ctx, p, v, &mu, usage) })
		}
	}
	wg.Wait()
	for claim, u := range usage {
		for _, m := range claimMetrics() {
			if value := m.of(u); value != nil {
				ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(*value), claim.Namespace,
					claim.Name)
			}
		}
	}
}

// claimUsage adds the usage of a claim's volume to of, which mu guards. It adds nothing if the usage is not known.
func (s *Source) claimUsage(
	ctx context.Context, p *corev1.Pod, v *corev1.Volume, mu *sync.Mutex, of map[types.NamespacedName]*csi.Usage,
) {
	u := s.ClaimUsage(ctx, p, v.Name)
	if u == nil {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	of[types.NamespacedName{Namespace: p.Namespace, Name: podkind.ClaimName(p, v)}] = u
}

// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/csi"
)

// addClaims adds the usage of claims' volumes and of inline CSI volumes. It queries all at the same time, since a
// driver that hangs is waited for.
func (s *Source) addClaims(ctx context.Context, pods []pod, specs map[string]*corev1.Pod) {
	if s.ClaimUsage == nil {
		return
	}
	var wg sync.WaitGroup
	found := make([][]volume, len(pods))
	for i := range pods {
		p := specs[pods[i].Ref.UID]
		if p == nil {
			continue
		}
		found[i] = make([]volume, len(p.Spec.Volumes))
		for j := range p.Spec.Volumes {
			v := &p.Spec.Volumes[j]
			if v.PersistentVolumeClaim == nil && v.Ephemeral == nil && v.CSI == nil {
				continue
			}
			wg.Go(func() {
				if u := s.ClaimUsage(ctx, p, v.Name); u != nil {
					found[i][j] = claimVolume(p, v, u)
				}
			})
		}
	}
	wg.Wait()
	for i := range pods {
		for _, v := range found[i] {
			if v.Name != "" {
				pods[i].Volumes = append(pods[i].Volumes, v)
			}
		}
	}
}

// claimVolume converts the usage of a volume.
func claimVolume(p *corev1.Pod, v *corev1.Volume, usage *csi.Usage) volume {
	out := volume{Name: v.Name, fileSystem: fileSystem{Time: metav1.NewTime(usage.At)}}
	if v.CSI == nil {
		out.PVC = &claimRef{Name: podkind.ClaimName(p, v), Namespace: p.Namespace}
	}
	for dst, src := range map[**uint64]*int64{
		&out.CapacityBytes:  usage.Capacity,
		&out.AvailableBytes: usage.Available,
		&out.UsedBytes:      usage.Used,
		&out.Inodes:         usage.Inodes,
		&out.InodesFree:     usage.InodesFree,
		&out.InodesUsed:     usage.InodesUsed,
	} {
		if src != nil {
			*dst = unsigned(*src)
		}
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins/noderesources"
)

// capacityOn says what a class has left on a node; empty: nothing is said of it.
func capacityOn(class, node, capacity, largest string) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "storage", Name: class + "-" + node},
		StorageClassName: class,
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}},
	}
	amount := func(text string) *resource.Quantity {
		if text == "" {
			return nil
		}
		q := resource.MustParse(text)
		return &q
	}
	c.Capacity = amount(capacity)
	c.MaximumVolumeSize = amount(largest)
	return c
}

func claimOf(name, class, size string) *corev1.PersistentVolumeClaim {
	c := lateClaim(name, class)
	delete(c.Spec.Resources.Requests, corev1.ResourceStorage)
	if size != "" {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	}
	return c
}

func sized(v *corev1.PersistentVolume, size string) *corev1.PersistentVolume {
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	return v
}

// leastUsed is the shape of the default configuration.
var leastUsed = noderesources.RequestedToCapacity([]configv1.UtilizationShapePoint{
	{Utilization: 0, Score: 10},
	{Utilization: 100, Score: 0},
})

// TestVolumeScore: nodes are refused and ranked by what the pod's volumes would take of the storage there.
func TestVolumeScore(t *testing.T) {
	yes := true
	csi := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "csi.io"},
		Spec: storagev1.CSIDriverSpec{
			StorageCapacity: &yes,
		},
	}
	objs := []runtime.Object{
		csi, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "silent.io"}}, lateClass("fast", "csi.io"),
		lateClass("slow", "csi.io"), lateClass("silent", "silent.io"),
		lateClass("static", volume.NotSupportedProvisioner),
		capacityOn("fast", "a", "100Gi", ""), capacityOn("fast", "b", "1000Gi", "50Gi"), capacityOn("fast", "c", "",
			"500Gi"), capacityOn("slow", "a", "200Gi", ""), capacityOn("slow", "b", "10Gi", ""),
		sized(volumeOn("on-a", "a"), "10Gi"), sized(volumeOn("on-b", "b"), "100Gi"),
		claimOf("f10", "fast", "10Gi"), claimOf("f30", "fast", "30Gi"), claimOf("f60", "fast", "60Gi"),
		claimOf("g60", "fast", "60Gi"), claimOf("s20", "slow", "20Gi"), claimOf("any", "fast", ""),
		claimOf("huge", "fast", "9Ei"), claimOf("silent", "silent", "1Gi"), claimOf("static", "static", "10Gi"),
	}
	storage, _ := storageOf(t, objs...)
	for _, tt := range []struct {
		claims string
		points []configv1.UtilizationShapePoint
		want   string // by node: the score, "full" or "-": no node is scored
	}{
		{"f10", nil, "a 90, b 99, c 0"},
		{"f60", nil, "a 40, b full, c 0"},
		{"f30 f60", nil, "a 10, b full, c 0"},
		{"s20", nil, "a 90, b full, c full"},
		{"f10 s20", nil, "a 90, b full, c full"},
		{"f60 g60", nil, "a 0, b full, c 0"},
		{"f60 f60", nil, "a 40, b full, c 0"},
		{"huge", nil, "a full, b full, c full"},
		{"any", nil, "-"},
		{"silent", nil, "-"},
		{"", nil, "-"},
		{"static", nil, "a 0, b 90, c none"},
		{"static f60", nil, "a 0, b full, c none"},
		{"f10", []configv1.UtilizationShapePoint{{Utilization: 0, Score: 0}, {Utilization: 50, Score: 10}}, "a 20, b 2, c 100"},
	} {
		t.Run(tt.claims, func(t *testing.T) {
			volumeBinding := &Binding{Storage: storage, Rank: leastUsed}
			if tt.points != nil {
				volumeBinding.Rank = noderesources.RequestedToCapacity(tt.points)
			}
			pod := podWith("p", strings.Fields(tt.claims)...)
			cycle := &framework.CycleState{}
			f, st := volumeBinding.PreFilter(cycle, pod, nil)
			if st != nil {
				t.Fatal(st)
			}
			var got []string
			for _, name := range []string{"a", "b", "c"} {
				if f.Filter == nil {
					break
				}
				said := name
				switch st := f.Filter(nodeNamed(name)); st {
				case nil:
				case noSpace:
					said += " full"
				default:
					said += " none"
				}
				got = append(got, said)
			}
			scorer := volumeBinding.PreScore(cycle, pod, nil, nil)
			for i, name := range []string{"a", "b", "c"} {
				if scorer.Score != nil && got[i] == name {
					got[i] += fmt.Sprintf(" %d", scorer.Score(nodeNamed(name)))
				}
			}
			all := strings.Join(got, ", ")
			if scorer.Score == nil && !strings.Contains(all, "full") {
				all = "-"
			}
			if all != tt.want {
				t.Errorf("got %s, want %s", all, tt.want)
			}
		})
	}
	v := &volumeScorer{rank: leastUsed}
	for _, tt := range []struct{ requests, offers, want int64 }{
		{0, 0, 0},
		{1, 0, 0},
		{math.MaxInt64, math.MaxInt64, 0},
		{math.MaxInt64 / 2, math.MaxInt64, 51},
		{addCapped(math.MaxInt64, 5), 7, 0},
		{-1, 10, 100},
		{5, 10, 50},
	} {
		if got := v.rankCapped(tt.requests, tt.offers); got != tt.want {
			t.Errorf("%d of %d: %d, want %d", tt.requests, tt.offers, got, tt.want)
		}
	}
}

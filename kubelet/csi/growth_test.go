// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"strings"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
)

func TestGrowthAndUsage(t *testing.T) {
	request := claimed("u", "pv", "handle")
	request.Claim.ResourceVersion = "7"
	request.Claim.UID = "c-uid"
	request.Claim.Status = corev1.PersistentVolumeClaimStatus{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
		},
		Conditions: []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending},
			{Type: "Other"},
		},
	}
	request.PV.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	bench := newBench(t, noAttach(), request.Claim)
	conflicts := 1 // a controller has written the claim in the meantime
	bench.api.PrependReactor("patch", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		conflicts--
		return conflicts == 0, nil, apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), "claim-pv", nil)
	})
	bench.serve()
	if got := bench.setUp(request); got.Refresh.IsZero() {
		t.Error("no one checks whether the volume grows")
	}
	bench.calls("NodeStageVolume handle", "NodePublishVolume handle", "NodeExpandVolume handle")
	q := bench.driver.Last("NodeExpandVolume").(*csiapi.NodeExpandVolumeRequest)
	if q.GetCapacityRange().GetRequiredBytes() != 2<<30 || !strings.HasSuffix(q.GetVolumePath(), "/pv/mount") ||
		!strings.HasSuffix(q.GetStagingTargetPath(), "/globalmount") {
		t.Errorf("grown by %v", q)
	}
	c, err := bench.api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "claim-pv", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Status; s.Capacity.Storage().String() != "2Gi" || len(s.Conditions) != 1 ||
		len(s.AllocatedResourceStatuses) != 0 {
		t.Errorf("the claim's status: %+v", s)
	}
	if e := <-bench.events.Events; e != `Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" n` {
		t.Errorf("event %q", e)
	}
	<-bench.events.Events
	// A driver that fails is reported, and delays nothing.
	bench.driver.Break("NodeExpandVolume", status.Error(codes.Internal, "no"))
	bench.setUp(request)
	if e := <-bench.events.Events; !strings.HasPrefix(e,
		`Warning VolumeResizeFailed MountVolume.NodeExpandVolume failed for volume "pv" : rpc error: code = Internal desc = no`) {
		t.Errorf("event %q", e)
	}
	bench.driver.Calls()
	if u := bench.m.Stats(t.Context(), "u", "data"); u == nil || *u.Capacity != 1000 || *u.Available != 600 ||
		*u.InodesUsed != 3 {
		t.Errorf("usage: %+v", u)
	}
	bench.m.Stats(t.Context(), "u", "data")
	bench.calls("NodeGetVolumeStats handle")
	if u := bench.m.Stats(t.Context(), "u", "none"); u != nil {
		t.Errorf("usage of no volume: %+v", u)
	}
	if err := bench.m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	bench.empty()
}

// TestNodesDoNotGrow: a claim may say that its volume grows without the node.
func TestNodesDoNotGrow(t *testing.T) {
	request := claimed("u", "pv", "handle")
	size := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	request.Claim.Status.Capacity = size("1Gi")
	request.PV.Spec.Capacity = size("2Gi")
	if larger(request.Claim, request.PV) == nil {
		t.Error("a volume that is larger than its claim's status does not grow")
	}
	request.Claim.Annotations = map[string]string{"volume.kubernetes.io/node-expansion-not-required": "true"}
	if got := larger(request.Claim, request.PV); got != nil {
		t.Errorf("the node grows it to %v", got)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"specVolID":"pv","volumeHandle":"h","driverName":"d"}`))
	f.Add([]byte(`{"specVolID":"../../x","volumeHandle":"h","driverName":".."}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parse(b)
		if err != nil {
			return
		}
		for _, block := range []bool{true, false} {
			dir, target := r.key().stagedAt(block, r.SpecVolID)
			record, at := publishedAt("u", block, r.SpecVolID)
			for _, p := range []string{dir, target} {
				if !strings.HasPrefix(p, staging+"/") {
					t.Errorf("%q leads to %s", b, p)
				}
			}
			if !strings.HasPrefix(record, "pods/u/") || !strings.HasPrefix(at, "pods/u/") && !strings.HasPrefix(at,
				staging+"/") {
				t.Errorf("%q leads to %s, %s", b, record, at)
			}
		}
	})
}

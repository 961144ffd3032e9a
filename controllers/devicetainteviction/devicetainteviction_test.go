// SPDX-License-Identifier: Apache-2.0

package devicetainteviction

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
)

func pod(name string) *corev1.Pod {
	return apitest.Pod("dev/"+name, apitest.On("n"), apitest.UID("pod"), func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("c")}}
	})
}

func claim(tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	resourceClaim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "c"}}
	resourceClaim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "p", UID: "pod"},
	}
	resourceClaim.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{
				Request:     "r",
				Driver:      "gpus.example.com",
				Pool:        "n",
				Device:      "gpu-0",
				Tolerations: tolerations,
			},
		}},
	}
	return resourceClaim
}

func slice(device string, generation int64, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:  "gpus.example.com",
			Pool:    resourcev1.ResourcePool{Name: "n", Generation: generation},
			Devices: []resourcev1.Device{{Name: device, Taints: taints}},
		},
	}
}

// TestEviction: which pods are evicted from a tainted device, and when.
func TestEviction(t *testing.T) {
	broken := resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute}
	noSchedule := resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}
	tolerate := func(key string, seconds *int64) resourcev1.DeviceToleration {
		return resourcev1.DeviceToleration{
			Key:               key,
			Operator:          resourcev1.DeviceTolerationOpExists,
			Effect:            resourcev1.DeviceTaintEffectNoExecute,
			TolerationSeconds: seconds,
		}
	}
	minute := int64(60)
	hour := int64(3600)
	ages := int64(1) << 40
	for _, tt := range []struct {
		name  string
		taint resourcev1.DeviceTaint
		on    string
		claim *resourcev1.ResourceClaim
		after time.Duration // -1: never
	}{
		{"at once", broken, "gpu-0", claim(), 0},
		{"another device", broken, "gpu-1", claim(), -1},
		{"only for new pods", noSchedule, "gpu-0", claim(), -1},
		{"tolerated", broken, "gpu-0", claim(tolerate("broken", nil)), -1},
		{"for longer than a Duration", broken, "gpu-0", claim(tolerate("broken", &ages)), -1},
		{"another taint tolerated", broken, "gpu-0", claim(tolerate("hot", nil)), 0},
		{"for a time", broken, "gpu-0", claim(tolerate("broken", &hour), tolerate("", &minute)), time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := controllertest.New(pod("p"), tt.claim, slice("gpu-0", 1))
				cluster.Start(t, "device-taint-eviction-controller", New)
				synctest.Wait()
				tt.taint.TimeAdded = &metav1.Time{Time: time.Now()}
				if _, err := cluster.ResourceV1().ResourceSlices().Update(t.Context(), slice(tt.on, 2, tt.taint),
					metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				there := func(after time.Duration) bool {
					time.Sleep(after)
					synctest.Wait()
					_, err := cluster.CoreV1().Pods("dev").Get(t.Context(), "p", metav1.GetOptions{})
					if err != nil && !apierrors.IsNotFound(err) {
						t.Fatal(err)
					}
					return err == nil
				}
				if tt.after > 0 && !there(tt.after-2*time.Second) {
					t.Error("it went too early")
				}
				wait := 3 * time.Second
				if tt.after < 0 {
					wait = 24 * time.Hour
				}
				if got := there(wait); got != (tt.after < 0) {
					t.Errorf("it is there: %v", got)
				}
				if said := strings.Join(cluster.EventsSeen(), "\n"); strings.Contains(said,
					"Normal DeviceTaintManagerEviction Marking for deletion") != (tt.after >= 0) {
					t.Errorf("said %s", said)
				}
			})
		})
	}
}

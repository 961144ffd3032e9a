// SPDX-License-Identifier: Apache-2.0

package devicetainteviction

import (
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
)

func rule(effect resourcev1.DeviceTaintEffect, device string) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "r", Generation: 1},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Device: &device},
			Taint: resourcev1.DeviceTaint{
				Key:       "broken",
				Effect:    effect,
				TimeAdded: &metav1.Time{Time: time.Now()},
			},
		},
	}
}

// TestRules: whom a rule makes leave, when, and what its status says before and after.
func TestRules(t *testing.T) {
	const (
		none, noSchedule, noExecute = resourcev1.DeviceTaintEffectNone, resourcev1.DeviceTaintEffectNoSchedule,
			resourcev1.DeviceTaintEffectNoExecute
		again = " if the effect was NoExecute. This information will not be updated again. " +
			"Recreate the DeviceTaintRule to trigger an update."
	)
	for _, tt := range []struct {
		name          string
		effect        resourcev1.DeviceTaintEffect
		device        string
		seconds       int64 // for which the rule is tolerated; 0: not
		before, after string
		evicted       bool
	}{
		{"at once", noExecute, "gpu-0", 0, "", "False Completed 1 pod evicted since starting the controller.", true},
		{
			"later", noExecute, "gpu-0", 60, "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace.",
			"False Completed 1 pod evicted since starting the controller.", true,
		},
		{"another device", noExecute, "gpu-1", 0, "False NotStarted ", "False NotStarted ", false},
		{
			"another effect", noSchedule, "gpu-0", 0, "False OtherEffect Eviction only happens for the NoExecute " +
				"effect.", "False OtherEffect Eviction only happens for the NoExecute effect.", false,
		},
		{
			"none", none, "gpu-0", 60, "False NoEffect 1 published device selected. 1 allocated device selected. 1 " +
				"pod would be evicted in 1 namespace" + again,
			"False NoEffect 1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 " +
				"namespace" + again, false,
		},
		{
			"none, at no device", none, "gpu-1", 0, "False NoEffect 0 published devices selected. 0 allocated devices " +
				"selected. 0 pods would be evicted in 0 different namespaces" + again,
			"False NoEffect 0 published devices selected. 0 allocated devices selected. 0 pods would be evicted in 0 " +
				"different namespaces" + again, false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				held := claim()
				if tt.seconds > 0 {
					held = claim(resourcev1.DeviceToleration{
						Key:               "broken",
						Operator:          resourcev1.DeviceTolerationOpExists,
						TolerationSeconds: &tt.seconds,
					})
				}
				cluster := controllertest.New(pod("p"), held, slice("gpu-0", 1))
				cluster.Start(t, "device-taint-eviction-controller", New)
				synctest.Wait()
				if _, err := cluster.ResourceV1().DeviceTaintRules().Create(t.Context(), rule(tt.effect, tt.device),
					metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				check := func(want string) {
					t.Helper()
					r, err := cluster.ResourceV1().DeviceTaintRules().Get(t.Context(), "r", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					got := ""
					for _, c := range r.Status.Conditions {
						got += string(c.Status) + " " + c.Reason + " " + c.Message
					}
					if got != want {
						t.Errorf("the status says %q, want %q", got, want)
					}
				}
				synctest.Wait()
				if tt.before != "" {
					check(tt.before)
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				check(tt.after)
				_, err := cluster.CoreV1().Pods("dev").Get(t.Context(), "p", metav1.GetOptions{})
				if err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
				if (err != nil) != tt.evicted {
					t.Errorf("evicted: %v, want %v", err != nil, tt.evicted)
				}
			})
		})
	}
}

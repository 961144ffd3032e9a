// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"keelson/kubelet/dra/dratest"
)

// run has the manager receive health until the test ends.
func (n *node) run() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	m := n.Manager
	done := make(chan struct{})
	go func() {
		m.watchHealth(ctx)
		close(done)
	}() // ends with ctx
	n.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// waitForHealth waits until the status of a pod's container says want of its devices, as "resource: id health message,
// ...; ...".
func (n *node) waitForHealth(pod *corev1.Pod, want string) {
	n.t.Helper()
	for {
		var got []string
		for _, s := range n.Health(pod, &pod.Spec.Containers[0]) {
			var devices []string
			for _, r := range s.Resources {
				d := string(r.ResourceID) + " " + string(r.Health)
				if r.Message != nil {
					d += " " + *r.Message
				}
				devices = append(devices, d)
			}
			got = append(got, string(s.Name)+": "+strings.Join(devices, ", "))
		}
		if strings.Join(got, "; ") == want {
			return
		}
		select {
		case uid := <-n.changed:
			if uid != string(pod.UID) {
				n.t.Errorf("pod %s was notified", uid)
			}
		case <-time.After(time.Minute):
			n.t.Fatalf("after a minute: %q, want %q", got, want)
		}
	}
}

func healthOfDevice(name string, h healthapi.HealthStatus, seconds int64, message string) *healthapi.DeviceHealth {
	return &healthapi.DeviceHealth{
		Device:                    &healthapi.DeviceIdentifier{PoolName: "n", DeviceName: name},
		Health:                    h,
		HealthCheckTimeoutSeconds: seconds,
		Message:                   message,
	}
}

// TestHealth: what a driver says of devices, by either version of the service, is reported for the pods that have them,
// by claim and request; what it does not repeat in time is not known any more.
func TestHealth(t *testing.T) {
	for _, version := range []dratest.Health{dratest.HealthV1, dratest.HealthV1Alpha1} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			p := pod("p", "c/x", "c")
			node := newNode(t, claimed("c", "x y", "p"), claimed("d", "z", "other"))
			node.driver.Health = version
			node.cfg.HealthTimeout = time.Hour
			node.serve()
			if err := node.Prepare(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if err := node.Prepare(t.Context(), pod("other", "d")); err != nil {
				t.Fatal(err)
			}
			if got := node.Health(p, &p.Spec.Containers[0]); got != nil {
				t.Errorf("before the first report: %v", got)
			}
			node.driver.Report(healthOfDevice("gpu-x", healthapi.HealthStatus_HEALTHY, 1000, ""),
				healthOfDevice("gpu-y", healthapi.HealthStatus_HEALTHY, 1000, ""))
			node.run()
			x := gpus + "/claim=uid-c-0"
			y := gpus + "/claim=uid-c-1"
			for { // the first report concerns all pods of the driver
				if uid := <-node.changed; uid == "pod-p" {
					break
				}
			}
			node.waitForHealth(p, "claim:c/x: "+x+" Healthy; claim:c: "+x+" Healthy, "+y+" Healthy")
			node.driver.Report(healthOfDevice("gpu-y", healthapi.HealthStatus_UNHEALTHY, 1, "it is hot"))
			node.waitForHealth(p, "claim:c/x: "+x+" Healthy; claim:c: "+x+" Healthy, "+y+" Unhealthy it is hot")
			node.waitForHealth(p, "claim:c/x: "+x+" Healthy; claim:c: "+x+" Healthy, "+y+" Unknown")
			if err := node.Unprepare(t.Context(), "pod-p"); err != nil {
				t.Fatal(err)
			}
			node.waitForHealth(p, "")
		})
	}
}

// TestHealthWithoutService: the health of devices whose driver has no such service is not known, nor that of devices
// whose driver does not come.
func TestHealthWithoutService(t *testing.T) {
	unknown := "claim:c: " + gpus + "/claim=uid-c-0 Unknown"
	for _, version := range []dratest.Health{dratest.HealthRefused, dratest.NoHealth} {
		p := pod("p", "c")
		node := newNode(t, claimed("c", "x", "p"))
		node.driver.Health = version
		node.serve()
		if err := node.Prepare(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		node.run()
		node.waitForHealth(p, unknown)

		node.stopped()
		node.restart()
		node.cfg.HealthTimeout = time.Millisecond
		if got := node.Health(p, &p.Spec.Containers[0]); got != nil {
			t.Errorf("before drivers had time to come: %v", got)
		}
		node.run()
		node.waitForHealth(p, unknown)
	}
}

// TestHealthOfTheLatestDriver: of two plugins of a driver the latest one counts, and what the first one said
// holds meanwhile.
func TestHealthOfTheLatestDriver(t *testing.T) {
	p := pod("p", "c")
	node := newNode(t, claimed("c", "x", "p"))
	node.serve()
	if err := node.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	node.driver.Report(healthOfDevice("gpu-x", healthapi.HealthStatus_UNHEALTHY, 1000, ""))
	node.run()
	node.waitForHealth(p, "claim:c: "+gpus+"/claim=uid-c-0 Unhealthy")
	next := node.info()
	next.Socket = "next-reg.sock"
	if err := node.Register(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	node.waitForHealth(p, "claim:c: "+gpus+"/claim=uid-c-0 Unhealthy")
	node.Unregister(t.Context(), node.info())
	node.driver.Report(healthOfDevice("gpu-x", healthapi.HealthStatus_HEALTHY, 1000, ""))
	node.waitForHealth(p, "claim:c: "+gpus+"/claim=uid-c-0 Healthy")
	next.Versions = next.Versions[1:] // without the service of health
	next.Socket = "plain-reg.sock"
	if err := node.Register(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	node.waitForHealth(p, "claim:c: "+gpus+"/claim=uid-c-0 Unknown")
}

// TestHealthIsBounded: a driver's report is limited in size and in lifetime.
func TestHealthIsBounded(t *testing.T) {
	node := newNode(t)
	var many []*healthapi.DeviceHealth
	for i := range maxReportedDevices {
		many = append(many, healthOfDevice(fmt.Sprint(i), healthapi.HealthStatus_HEALTHY, 1<<62, ""))
	}
	if _, err := node.updateHealth(gpus, many); err != nil {
		t.Error(err)
	}
	if _, err := node.updateHealth(gpus,
		[]*healthapi.DeviceHealth{healthOfDevice("0", healthapi.HealthStatus_UNHEALTHY, 0, "")}); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	for _, name := range []string{"one more", strings.Repeat("x", maxDeviceName)} {
		if _, err := node.updateHealth(gpus,
			[]*healthapi.DeviceHealth{healthOfDevice(name, healthapi.HealthStatus_HEALTHY, 0, "")}); err == nil ||
			len(node.health.byDriver[gpus]) > maxReportedDevices {
			t.Errorf("%.20s: %v, %d are known", name, err, len(node.health.byDriver[gpus]))
		}
	}
	if until := node.health.byDriver[gpus][deviceKey{"n", "1"}].until; until.After(time.Now().Add(maxHealthTimeout)) {
		t.Errorf("it holds until %v", until)
	}
}

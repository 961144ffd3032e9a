// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func cidr(name, ready string, cidrs ...string) *networkingv1.ServiceCIDR {
	serviceCIDR := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{
			CIDRs: cidrs,
		},
	}
	if ready != "" {
		serviceCIDR.Status.Conditions = []metav1.Condition{
			{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionStatus(ready)},
		}
	}
	return serviceCIDR
}

// TestServersShareIPAddresses: two servers that learn of nothing but what they try to claim give no address twice.
func TestServersShareIPAddresses(t *testing.T) {
	b := newFakeIPAddresses()
	servers := []*Allocator{sharing(t, "10.96.0.0/25", b), sharing(t, "10.96.0.0/25", b)}
	var mu sync.Mutex
	seen := map[string]string{}
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			service := serviceOf(fmt.Sprint("s", i), corev1.ServiceTypeClusterIP)
			settle, err := servers[i%2].Begin(t.Context(), service, nil, false)
			if err != nil {
				t.Error(err)
				return
			}
			settle(true)
			mu.Lock()
			defer mu.Unlock()
			if other, taken := seen[service.Spec.ClusterIP]; taken {
				t.Errorf("%s given to %s and %s", service.Spec.ClusterIP, other, service.Name)
			}
			seen[service.Spec.ClusterIP] = service.Name
		})
	}
	wg.Wait()
	taken := serviceOf("late", corev1.ServiceTypeClusterIP)
	for ip, name := range seen {
		if name == "s0" { // of the first server
			taken.Spec.ClusterIP = ip
			taken.Spec.ClusterIPs = []string{ip}
		}
	}
	if _, err := servers[1].Begin(t.Context(), taken, nil, false); err == nil ||
		!strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("an address of the other server: got %v", err)
	}
}

func TestMoreRanges(t *testing.T) {
	a := allocator(t, "10.96.0.0/29")
	take := func(name string) (string, error) {
		s := serviceOf(name, corev1.ServiceTypeClusterIP)
		settle, err := a.Begin(t.Context(), s, nil, false)
		if err == nil {
			settle(true)
		}
		return s.Spec.ClusterIP, err
	}
	for i := range 5 {
		if _, err := take(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	a.SetRange(cidr("more", "False", "10.97.0.0/29"))
	if ip, err := take("x"); err == nil {
		t.Errorf("got %s from a range that is not ready", ip)
	}
	a.SetRange(cidr("more", "True", "10.97.0.0/29"))
	if ip, err := take("x"); err != nil || !strings.HasPrefix(ip, "10.97.0.") {
		t.Errorf("from the second range: %s, %v", ip, err)
	}
	for _, ip := range []string{"10.97.0.0", "10.97.0.7"} {
		s := serviceOf("edge", corev1.ServiceTypeClusterIP)
		s.Spec.ClusterIP = ip
		s.Spec.ClusterIPs = []string{ip}
		if _, err := a.Begin(t.Context(), s, nil, false); err == nil ||
			!strings.Contains(err.Error(), "the provided network does not match the current range") {
			t.Errorf("%s: got %v", ip, err)
		}
	}
	going := cidr("more", "True", "10.97.0.0/29")
	going.DeletionTimestamp = new(metav1.Now())
	a.SetRange(going)
	if ip, err := take("y"); err == nil {
		t.Errorf("got %s from a range that is going", ip)
	}
	a.RemoveRange(going)
	a.RemoveRange(cidr("kubernetes", "", "10.96.0.0/29"))
	s := serviceOf("own", corev1.ServiceTypeClusterIP)
	s.Spec.ClusterIP = "10.96.0.1"
	s.Spec.ClusterIPs = []string{"10.96.0.1"}
	if _, err := a.Begin(t.Context(), s, nil, false); err != nil {
		t.Errorf("the server's own range is gone: %v", err)
	}
}

func TestDryRunTakesNothing(t *testing.T) {
	a := allocator(t, "10.96.0.0/24")
	dry := serviceOf("dry", corev1.ServiceTypeClusterIP)
	settle, err := a.Begin(t.Context(), dry, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if settle(false); a.ipAddressClient.(*fakeIPAddresses).has(dry.Spec.ClusterIP) || len(a.ips) != 0 {
		t.Errorf("a dry run took %s", dry.Spec.ClusterIP)
	}
}

func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := newFakeIPAddresses()
		allocator := sharing(t, "10.96.0.0/24", addresses)
		addresses.watchers = []*Allocator{allocator}
		old := serviceOf("old", corev1.ServiceTypeClusterIP) // from before there were IPAddresses
		old.Spec.ClusterIP = "10.96.0.5"
		old.Spec.ClusterIPs = []string{"10.96.0.5"}
		allocator.SetService(old)
		put := func(ip, name string, age time.Duration) {
			addresses.mu.Lock()
			defer addresses.mu.Unlock()
			addresses.putLocked(netip.MustParseAddr(ip), types.NamespacedName{Namespace: "default", Name: name},
				time.Now().Add(-age))
		}
		put("10.96.0.6", "leaked", time.Hour)
		put("10.96.0.7", "coming", 0)
		foreign := Address(netip.MustParseAddr("10.96.0.8"), types.NamespacedName{})
		foreign.Labels = nil
		addresses.objects[netip.MustParseAddr("10.96.0.8")] = foreign
		allocator.SetAddress(foreign)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() {
			if err := allocator.Run(ctx, slog.New(slog.DiscardHandler)); err != nil {
				t.Error(err)
			}
		})
		check := func(when string, want map[string]bool) {
			t.Helper()
			synctest.Wait()
			for ip, has := range want {
				if addresses.has(ip) != has {
					t.Errorf("%s: %s claimed is %v, want %v", when, ip, !has, has)
				}
			}
		}
		time.Sleep(3 * settleTime)
		check("at first", map[string]bool{
			"10.96.0.5": true,
			"10.96.0.6": false,
			"10.96.0.7": true,
			"10.96.0.8": true,
		})
		time.Sleep(ipLeakTime)
		check("a minute later", map[string]bool{"10.96.0.7": false, "10.96.0.8": true})
		addresses.mu.Lock()
		addresses.removeLocked(netip.MustParseAddr("10.96.0.5"))
		addresses.mu.Unlock()
		time.Sleep(2 * settleTime)
		check("deleted by hand", map[string]bool{"10.96.0.5": true})
		put("10.96.0.9", "other", 0)
		stolen := serviceOf("stolen", corev1.ServiceTypeClusterIP)
		stolen.Spec.ClusterIP = "10.96.0.9"
		stolen.Spec.ClusterIPs = []string{"10.96.0.9"}
		allocator.SetService(stolen)
		time.Sleep(3 * settleTime)
		synctest.Wait()
		addresses.mu.Lock()
		owner, _ := Of(addresses.objects[netip.MustParseAddr("10.96.0.9")])
		addresses.mu.Unlock()
		if owner.Name != "stolen" {
			t.Errorf("an address with the wrong service is %v's", owner)
		}
		allocator.RemoveService(old)
		synctest.Wait()
		check("service gone", map[string]bool{"10.96.0.5": false})
		idle := func() (releases, due int) {
			synctest.Wait()
			addresses.mu.Lock()
			defer addresses.mu.Unlock()
			return addresses.releases, allocator.loop.Len()
		}
		before, _ := idle()
		time.Sleep(10 * ipLeakTime)
		if after, due := idle(); after != before || due != 0 {
			t.Errorf("idle: %d releases, %d things to look at", after-before, due)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/servertest"
	"keelson/apiserver/servicealloc"
	"keelson/lib/waittest"
	"keelson/store"
)

const portsKey = "/registry/ranges/servicenodeports"

// recorded are the ports that the store's record says are taken.
func recorded(t *testing.T, st store.Store) *corev1.RangeAllocation {
	t.Helper()
	kv, _, err := st.Get(t.Context(), portsKey, 0)
	if err != nil {
		t.Fatal(err)
	}
	const head = "k8s\x00"
	r := &corev1.RangeAllocation{}
	i := strings.Index(string(kv.Value), "RangeAllocation")
	if !strings.HasPrefix(string(kv.Value), head) || i < 0 {
		t.Fatalf("the record is stored as %q", kv.Value)
	}
	rest := kv.Value[i+len("RangeAllocation"):] // a tag, a length of one byte or two, the message
	for skip := 2; skip <= 3; skip++ {
		if err = r.Unmarshal(rest[skip : len(rest)-4]); err == nil && r.Range != "" {
			return r
		}
	}
	t.Fatalf("the record is stored as %q: %v", kv.Value, err)
	return nil
}

// TestServersShareNodePorts: two servers on one store give no node port twice, and what one gives back the other has at
// once.
func TestServersShareNodePorts(t *testing.T) {
	st, ca := servertest.NewSite(t)
	start := func(name string) (kubernetes.Interface, func()) {
		r, stop := servertest.StartOn(t, st, ca, func(cfg *servertest.Setup) {
			cfg.Address.Advertise = name
			cfg.Objects.SharedStore = true
			cfg.NodePorts = servicealloc.PortRange{First: 31000, Last: 31059}
		})
		return r.Clients(t), stop
	}
	first, stop1 := start("192.0.2.1:6443")
	second, stop2 := start("192.0.2.2:6443")
	defer stop1()
	clients := []kubernetes.Interface{first, second}
	ctx := t.Context()
	node := func(name string, port int32) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Type:  corev1.ServiceTypeNodePort,
				Ports: []corev1.ServicePort{{Port: 80, NodePort: port}},
			},
		}
	}
	var mu sync.Mutex
	seen := map[int32]string{}
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			service, err := clients[i%2].CoreV1().Services("default").Create(ctx, node(fmt.Sprint("s", i), 0),
				metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other, taken := seen[service.Spec.Ports[0].NodePort]; taken {
				t.Errorf("%d given to %s and %s", service.Spec.Ports[0].NodePort, other, service.Name)
			}
			seen[service.Spec.Ports[0].NodePort] = service.Name
		})
	}
	wg.Wait()
	if _, err := first.CoreV1().Services("default").Create(ctx, node("late", 0),
		metav1.CreateOptions{}); !apierrors.IsInternalError(err) ||
		!strings.Contains(err.Error(), "failed to allocate a nodePort: range is full") {
		t.Errorf("a port more than there are: %v", err)
	}
	const writtenBy = "keelson.dev/written-by"
	before := recorded(t, st).Annotations[writtenBy]
	for i := range 40 { // of one server's and the other's, through the other and the one
		name := seen[31000+int32(i)]
		port := 31000 + int32(i)
		if err := clients[i%2].CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		waittest.Right(t, "the port of a deleted service through the other server", func() string {
			if _, err := clients[(i+1)%2].CoreV1().Services("default").Create(ctx, node(fmt.Sprint("again", i), port),
				metav1.CreateOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
		if i == 0 {
			if _, err := clients[0].CoreV1().Services("default").Create(ctx, node("twice", port),
				metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
				t.Errorf("a port that the other server gave: %v", err)
			}
		}
	}
	if r := recorded(t, st); r.Range != "31000-31059" || len(r.Data) != 8 {
		t.Errorf("the record: %s, %x", r.Range, r.Data)
	} else if after := r.Annotations[writtenBy]; before == "" || after == "" || after == before {
		t.Errorf("two writes of the record have the marks %q and %q", before, after)
	}
	// One server goes, a service comes into the store past all servers (as of a backup), and the server starts again.
	stop2()
	if _, _, err := st.Delete(ctx, portsKey, 0); err != nil {
		t.Fatal(err)
	}
	second, stop2 = start("192.0.2.2:6443")
	defer stop2()
	clients[1] = second
	if _, err := second.CoreV1().Services("default").Create(ctx, node("twice", 31000),
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("with a new record: %v", err)
	}
}

// TestServicesOutOfRange: a server that is started with other ranges than its services are of says so on each.
func TestServicesOutOfRange(t *testing.T) {
	st, ca := servertest.NewSite(t)
	running, stop := servertest.StartOn(t, st, ca, nil)
	s := serviceAt("web", "")
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.Ports[0].NodePort = 30080
	if _, err := running.Clients(t).CoreV1().Services("default").Create(t.Context(), s,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop()
	running, stop = servertest.StartOn(t, st, ca, func(c *servertest.Setup) {
		c.NodePorts = servicealloc.PortRange{First: 31000, Last: 31059}
		c.Address.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}
	})
	defer stop()
	waittest.Right(t, "event of the port", func() string {
		list, err := running.Clients(t).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=web,reason=PortOutOfRange",
		})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != 1 ||
			list.Items[0].Message != "Port 30080 is not within the port range 31000-31059; please recreate service" {
			return fmt.Sprint(list.Items)
		}
		return ""
	})
	list, err := running.Clients(t).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
		FieldSelector: "reason=KubernetesDefaultServiceCIDRInconsistent",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 ||
		list.Items[0].Message != "The default ServiceCIDR [10.96.0.0/16] does not match the controller flag configurations [10.97.0.0/16]" {
		t.Errorf("events of the ranges: %v", list.Items)
	}
}

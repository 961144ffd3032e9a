// SPDX-License-Identifier: Apache-2.0

package upkeep_test

import (
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// whereKubernetes is what the service "kubernetes" leads to, in both forms.
func whereKubernetes(t *testing.T, r *servertest.Running) string {
	t.Helper()
	clientset := kubernetes.NewForConfigOrDie(r.Rest)
	var out []string
	// clients still read it
	ep, err := clientset.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if err == nil {
		for _, s := range ep.Subsets {
			for _, a := range s.Addresses {
				out = append(out, fmt.Sprintf("%s:%d", a.IP, s.Ports[0].Port))
			}
		}
	}
	out = append(out, "|")
	list, err := clientset.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			out = append(out, fmt.Sprintf("%s:%d", e.Addresses[0], *s.Ports[0].Port))
		}
	}
	return strings.Join(out, " ")
}

// TestKubernetesEndpoints: the service leads to the server's address, also after that was another one or a client wrote
// there; if the server cannot be reached, it leads nowhere.
func TestKubernetesEndpoints(t *testing.T) {
	st, ca := servertest.NewSite(t)
	for _, c := range []struct{ advertise, want string }{
		{"10.42.7.1:6443", "10.42.7.1:6443 | 10.42.7.1:6443"},
		{"192.0.2.3:7443", "192.0.2.3:7443 | 192.0.2.3:7443"},
		{"", "|"},
	} {
		running, stop := servertest.StartOn(t, st, ca, func(cfg *servertest.Setup) { cfg.Address.Advertise = c.advertise })
		if got := whereKubernetes(t, running); got != c.want {
			t.Errorf("advertise %q: got %s, want %s", c.advertise, got, c.want)
		}
		if c.advertise != "" {
			cl := kubernetes.NewForConfigOrDie(running.Rest)
			slice, err := cl.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			slice.Endpoints[0].Addresses = []string{"198.51.100.9"}
			if _, err := cl.DiscoveryV1().EndpointSlices("default").Update(t.Context(), slice,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := cl.CoreV1().Endpoints("default").Delete(t.Context(), "kubernetes",
				metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			waittest.Until(t, "repaired", func() bool { return whereKubernetes(t, running) == c.want })
		}
		rev, err := st.Revision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if now, _ := st.Revision(t.Context()); now != rev {
			t.Errorf("ending wrote %d times", now-rev)
		}
	}
}

// TestSharedStore: servers on one store are all endpoints; one that ends goes at once, and one that is killed when its
// key has not been renewed.
func TestSharedStore(t *testing.T) {
	st, ca := servertest.NewSite(t)
	at := func(advertise string) (*servertest.Running, func()) {
		return servertest.StartOn(t, st, ca, func(cfg *servertest.Setup) {
			cfg.Address.Advertise = advertise
			cfg.Objects.SharedStore = true
		})
	}
	if _, err := st.Create(t.Context(), "/registry/masterleases/192.0.2.9",
		[]byte("of a server that was killed")); err != nil {
		t.Fatal(err)
	}
	first, stop1 := at("192.0.2.1:6443")
	defer stop1()
	_, stop2 := at("192.0.2.2:6443")
	_, stop3 := at("192.0.2.3:7443")
	// a key without a port has the smallest port of the others
	want := "192.0.2.1:6443 192.0.2.2:6443 192.0.2.9:6443 192.0.2.3:7443"
	if got := whereKubernetes(t, first); got != want+" | "+want {
		t.Errorf("three servers and a dead one:\n got %s\nwant twice %s", got, want)
	}
	stop2()
	stop3()
	if got := whereKubernetes(t, first); strings.Contains(got, "192.0.2.2") || strings.Contains(got, "192.0.2.3") ||
		strings.Count(got, "192.0.2.1:6443") != 2 {
		t.Errorf("after two ended: %s", got)
	}
	if testing.Short() {
		return
	}
	waittest.Until(t, "the dead one goes", func() bool {
		return whereKubernetes(t, first) == "192.0.2.1:6443 | 192.0.2.1:6443"
	})
}

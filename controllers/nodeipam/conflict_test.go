// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

// aged is a node that came at that second.
func aged(second int64, name string, cidrs ...string) *corev1.Node {
	n := node(name, cidrs...)
	n.CreationTimestamp = metav1.Unix(second, 0)
	return n
}

type bench struct {
	*testing.T
	c *controllertest.Cluster
}

func conflicts(t *testing.T, f func(bench), nodes ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(nodes...)
		cfg := Config{Cluster: []netip.Prefix{prefix("10.42.0.0/16")}}
		c.Start(t, "node-controller", func(env *framework.Env) (framework.Controller, error) { return New(env, cfg) })
		time.Sleep(time.Second)
		f(bench{t, c})
	})
}

func (b bench) get(name string) *corev1.Node {
	b.Helper()
	n, err := b.c.CoreV1().Nodes().Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// says is what the node writes about itself.
func (b bench) says(name, release string) {
	b.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, AnnotationRelease, release)
	if _, err := b.c.CoreV1().Nodes().Patch(b.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		b.Fatal(err)
	}
	time.Sleep(time.Second)
}

func (b bench) want(name, ranges string, m conflictAnnotations) {
	b.Helper()
	n := b.get(name)
	if got := strings.Join(n.Spec.PodCIDRs, ","); got != ranges || conflictAnnotationsOf(n) != m {
		b.Errorf("node %s has %s and says %+v, want %s and %+v", name, got, conflictAnnotationsOf(n), ranges, m)
	}
}

// TestConflictIsRepaired: the younger of two nodes with a range is annotated, and gets another one when it releases
// that; the rest of the node is unchanged.
func TestConflictIsRepaired(t *testing.T) {
	young := aged(200, "a", "10.42.7.0/24")
	young.Labels = map[string]string{"disk": "fast", "node-role.kubernetes.io/worker": ""}
	young.Annotations = map[string]string{"mine": "kept"}
	young.Spec.Taints = []corev1.Taint{{Key: "only", Effect: corev1.TaintEffectNoSchedule}}
	young.Spec.Unschedulable = true
	conflicts(t, func(b bench) {
		b.want("z", "10.42.7.0/24", conflictAnnotations{})
		b.want("a", "10.42.7.0/24", conflictAnnotations{conflict: "z"})
		if said := strings.Join(b.c.EventsSeen(), "\n"); !strings.Contains(said,
			"CIDRConflict Node a has the pod range 10.42.7.0/24, which node z had before") {
			b.Errorf("events: %s", said)
		}
		before := b.get("a").UID
		b.says("a", "10.42.7.0/24")
		b.want("z", "10.42.7.0/24", conflictAnnotations{})
		b.want("a", "10.42.0.0/24", conflictAnnotations{})
		n := b.get("a")
		if n.UID == before || len(n.Labels) != 2 || n.Annotations["mine"] != "kept" || len(n.Spec.Taints) != 1 ||
			!n.Spec.Unschedulable {
			b.Errorf("the node that was recreated is %+v %+v", n.ObjectMeta, n.Spec)
		}
	}, aged(100, "z", "10.42.7.0/24"), young)
}

// TestNothingIsTakenUnasked: nodes keep their ranges unless they give up one that an older node has.
func TestNothingIsTakenUnasked(t *testing.T) {
	conflicts(t, func(b bench) {
		alone := b.get("alone").UID
		b.says("alone", "10.42.1.0/24")
		b.want("alone", "10.42.1.0/24", conflictAnnotations{})
		b.says("old", "10.42.7.0/24")
		b.want("old", "10.42.7.0/24", conflictAnnotations{})
		b.says("young", "10.42.9.0/24") // of another life
		b.want("young", "10.42.7.128/25", conflictAnnotations{conflict: "old"})
		if b.get("alone").UID != alone {
			b.Error("a node without a conflict was recreated")
		}
		if err := b.c.CoreV1().Nodes().Delete(b.Context(), "old", metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Second)
		b.want("young", "10.42.7.128/25", conflictAnnotations{})
	}, aged(1, "alone", "10.42.1.0/24"), aged(1, "old", "10.42.7.0/24"), aged(2, "young", "10.42.7.128/25"))
}

// TestNoDeletionWithoutCreate: a controller that may not create nodes does not delete one to recreate it.
func TestNoDeletionWithoutCreate(t *testing.T) {
	conflicts(t, func(b bench) {
		b.c.Fake.PrependReactor("create", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "young", nil)
		})
		before := b.get("young").UID
		b.says("young", "10.42.7.0/24")
		if b.get("young").UID != before {
			b.Error("the node was deleted")
		}
	}, aged(1, "old", "10.42.7.0/24"), aged(2, "young", "10.42.7.0/24"))
}

// TestNodeIsRecreatedInTheEnd: no node is lost if the server goes away between the deletion and the creation.
func TestNodeIsRecreatedInTheEnd(t *testing.T) {
	conflicts(t, func(b bench) {
		failures := 0
		b.c.Fake.PrependReactor("create", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if _, err := b.c.Fake.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "",
				"young"); err == nil {
				return false, nil, nil
			}
			failures++
			return failures < 4, nil, apierrors.NewServiceUnavailable("away")
		})
		b.says("young", "10.42.7.0/24")
		time.Sleep(time.Minute)
		b.want("young", "10.42.0.0/24", conflictAnnotations{})
		if failures < 4 {
			b.Errorf("the server failed %d times", failures)
		}
	}, aged(1, "old", "10.42.7.0/24"), aged(2, "young", "10.42.7.0/24"))
}

// TestOddRanges: an event of a node reports that its range is none of those that nodes are given. Of two with such a
// range the older keeps it.
func TestOddRanges(t *testing.T) {
	fake := aged(4, "fake", "10.128.0.0/24")
	fake.Annotations = map[string]string{annotationFake: "keelson"}
	conflicts(t, func(b bench) {
		said := strings.Join(b.c.EventsSeen(), "\n")
		for _, want := range []string{
			"Warning CIDROutOfRange Node wide has the pod range 10.42.128.0/17, which is larger than a node's /24",
			"Warning CIDROutOfRange Node abroad has the pod range 192.168.0.0/24, which is not in --cluster-cidr",
			"CIDRConflict Node twin has the pod range 192.168.0.0/24, which node abroad had before",
		} {
			if !strings.Contains(said, want) {
				b.Errorf("events: %s\nwant %s", said, want)
			}
		}
		if strings.Contains(said, "fake") || strings.Contains(said, "Node usual") {
			b.Errorf("events: %s", said)
		}
		b.want("twin", "192.168.0.0/24", conflictAnnotations{conflict: "abroad"})
		b.says("twin", "192.168.0.0/24")
		b.want("twin", "10.42.0.0/24", conflictAnnotations{})
		b.want("abroad", "192.168.0.0/24", conflictAnnotations{})
	}, aged(1, "wide", "10.42.128.0/17"), aged(2, "abroad", "192.168.0.0/24"), aged(3, "twin", "192.168.0.0/24"), aged(
		3, "usual", "10.42.5.0/24"), fake)
}

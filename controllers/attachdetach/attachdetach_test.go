// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

// world is a cluster with two nodes, a claim bound to volume one, and an attacher that works by hand.
type world struct {
	*controllertest.Cluster
	t *testing.T
}

func named(name string) func(*corev1.Node) { return func(n *corev1.Node) { n.Name = name } }

func testPod(name, node string) *corev1.Pod {
	return apitest.Pod("dev/"+name, apitest.On(node), apitest.Phase(corev1.PodPending), func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			},
		}}
	})
}

func start(t *testing.T, cfg Config, more ...runtime.Object) *world {
	t.Helper()
	objs := append([]runtime.Object{
		testNode(corev1.ConditionTrue), testNode(corev1.ConditionTrue, named("n2")),
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "data", UID: "claim"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "one"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "one"},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef:    &corev1.ObjectReference{Namespace: "dev", Name: "data", UID: "claim"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver:       one.driver,
					VolumeHandle: one.handle,
				}},
			},
		},
	}, more...)
	w := &world{controllertest.New(objs...), t}
	w.Start(t, "attachdetach-controller", func(env *framework.Env) (framework.Controller, error) {
		return New(env, cfg, NewMetrics())
	})
	w.settle()
	return w
}

func (w *world) settle() { time.Sleep(time.Second) }

func (w *world) pod(p *corev1.Pod) {
	w.t.Helper()
	if _, err := w.CoreV1().Pods(p.Namespace).Create(w.t.Context(), p, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

func (w *world) remove(pod string) {
	w.t.Helper()
	if err := w.CoreV1().Pods("dev").Delete(w.t.Context(), pod, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// attacher does as an external attacher: volumes become attached, or not.
func (w *world) attacher(failure string) {
	w.t.Helper()
	all, err := w.StorageV1().VolumeAttachments().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range all.Items {
		a := &all.Items[i]
		a.Status = storagev1.VolumeAttachmentStatus{Attached: failure == ""}
		if failure != "" {
			a.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: failure}
		}
		if _, err := w.StorageV1().VolumeAttachments().UpdateStatus(w.t.Context(), a,
			metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.settle()
}

func (w *world) node(name string, edit func(*corev1.Node)) {
	w.t.Helper()
	n, err := w.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	edit(n)
	if _, err := w.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// state is what the cluster says: attachments by node, and what nodes' status reports.
func (w *world) state() string {
	w.t.Helper()
	all, err := w.StorageV1().VolumeAttachments().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, a := range all.Items {
		if want := one.attachment(a.Spec.NodeName); managedName.MatchString(a.Name) &&
			(a.Name != want || a.Spec.Attacher != one.driver || volumeOf(&a) != "one") {
			w.t.Errorf("attachment %+v", a)
		}
		out = append(out, fmt.Sprintf("%s=%v", a.Spec.NodeName, a.Status.Attached))
	}
	nodes, err := w.CoreV1().Nodes().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, n := range nodes.Items {
		for _, v := range n.Status.VolumesAttached {
			out = append(out, n.Name+" has "+strings.TrimPrefix(string(v.Name), "kubernetes.io/csi/d.example.com^"))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (w *world) expect(when, want string) {
	w.t.Helper()
	if got := w.state(); got != want {
		w.t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func (w *world) said(want ...string) {
	w.t.Helper()
	if got := w.EventsSeen(); !slices.Equal(got, want) {
		w.t.Errorf("events %q, want %q", got, want)
	}
}

func TestAttachAndDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := start(t, Config{})
		world.pod(testPod("a", "n1"))
		world.expect("pod bound", "n1=false")
		world.attacher("no such disk")
		world.said(`Warning FailedAttachVolume AttachVolume.Attach failed for volume "one" : no such disk`)
		world.attacher("")
		world.expect("attached", "n1 has h1, n1=true")
		world.said(`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "one"`)

		// The pod moves: its volume follows once the first node does not use it any more.
		world.node("n1", func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{one.unique()} })
		world.pod(testPod("b", "n2"))
		world.said(`Warning FailedAttachVolume Multi-Attach error for volume "one" Volume is already used by pod(s) a`)
		world.remove("a")
		time.Sleep(time.Hour)
		world.expect("pod gone, volume in use", "n1 has h1, n1=true")
		world.node("n1", func(n *corev1.Node) { n.Status.VolumesInUse = nil })
		world.expect("unmounted", "n2=false")
		world.attacher("")
		world.expect("attached again", "n2 has h1, n2=true")
		world.said(`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "one"`)

		// Another pod there shares it; a finished one needs it no more.
		world.pod(testPod("c", "n2"))
		world.remove("b")
		world.expect("still needed", "n2 has h1, n2=true")
		c := testPod("c", "n2")
		c.Status.Phase = corev1.PodSucceeded
		if _, err := world.CoreV1().Pods("dev").UpdateStatus(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		world.settle()
		world.expect("finished", "")
		world.said()
	})
}

func TestLostNodes(t *testing.T) {
	unwell := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, testPod("a", "n1"))
		w.attacher("")
		w.node("n1", func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{one.unique()} })
		w.remove("a")
		w.node("n1", unwell)
		time.Sleep(5 * time.Minute)
		w.expect("lost for five minutes", "n1 has h1, n1=true")
		time.Sleep(time.Minute)
		w.expect("lost for six", "")
	})
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{NoForceDetach: true}, testPod("a", "n1"))
		w.attacher("")
		w.node("n1", func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{one.unique()} })
		w.node("n1", unwell)
		w.remove("a")
		time.Sleep(time.Hour)
		w.expect("lost for an hour", "n1 has h1, n1=true")
		w.node("n1", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		})
		w.expect("out of service", "")
	})
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Config{}, testPod("a", "n1"))
		w.attacher("")
		w.remove("a") // it goes at once; the next one's node is deleted under it
		w.expect("not used", "")
		w.pod(testPod("b", "n2"))
		w.attacher("")
		if err := w.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.expect("node deleted that used nothing", "")
	})
}

func TestWhatIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs := "theirs"
		gone := "no-such-volume"
		no := false
		world := start(
			t, Config{}, &storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{
					Name: one.driver,
				},
				Spec: storagev1.CSIDriverSpec{AttachRequired: &no},
			}, testPod("a", "n1"),
			&storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: theirs},
				Spec: storagev1.VolumeAttachmentSpec{
					Attacher: "x",
					NodeName: "n9",
					Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &gone},
				},
			},
		)
		world.expect("driver needs no attaching", "n9=false")
		if err := world.StorageV1().CSIDrivers().Delete(t.Context(), one.driver, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		world.settle()
		world.expect("a driver that says nothing does", "n1=false, n9=false")
	})
}

// TestOneNodeAtOnce lets many nodes race for one volume.
func TestOneNodeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := start(t, Config{})
		const nodes = 20
		for i := range nodes {
			name := fmt.Sprintf("m%02d", i)
			if _, err := world.CoreV1().Nodes().Create(t.Context(), testNode(corev1.ConditionTrue, named(name)),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := world.CoreV1().Pods("dev").Create(t.Context(), testPod("p-"+name, name),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[string]bool{}
		for range nodes {
			world.settle()
			world.attacher("")
			all, err := world.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(all.Items) != 1 {
				t.Fatalf("%d attachments at once, %v", len(all.Items), err)
			}
			at := all.Items[0].Spec.NodeName
			seen[at] = true
			world.remove("p-" + at)
		}
		world.expect("all had it", "")
		if len(seen) != nodes {
			t.Errorf("%d nodes had the volume", len(seen))
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
	"keelson/lib/signal"
)

// version is a version of a pod, or of a mirror pod.
func version(uid, version string, mirror bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}}
	if mirror {
		p.Annotations = map[string]string{podinfo.AnnotationMirror: "hash"}
	}
	return p
}

// woken reports whether the worker was woken since the last call.
func woken(i *inbox) bool {
	select {
	case <-i.wake.C():
		return true
	default:
		return false
	}
}

// TestInboxObjects: the newest version of each object counts, in whatever order they arrive.
func TestInboxObjects(t *testing.T) {
	i := &inbox{wake: signal.New(), pod: version("u", "5", false)}
	i.update(version("u", "7", false))
	i.update(version("u", "6", false))
	if got := i.view().pod.ResourceVersion; got != "7" {
		t.Errorf("version %s of the pod, want 7", got)
	}
	if !woken(i) || woken(i) {
		t.Error("two updates are not one wake-up")
	}

	mirror := version("m", "1", true)
	mirror.Status.Phase = corev1.PodRunning
	i.answered(mirror)
	if i.view().mirror != nil {
		t.Error("the answer to a write makes a mirror pod that is gone")
	}
	i.update(mirror)
	if v := i.view(); v.mirror != mirror || v.pod.Status.Phase != corev1.PodRunning || v.pod.UID != "u" {
		t.Errorf("the pod does not have the status of its mirror pod: %v", v)
	}
	i.deleted(version("earlier", "0", true))
	if i.view().mirror == nil {
		t.Error("the end of an earlier mirror pod removes the new one")
	}
	i.deleted(mirror)
	if v := i.view(); v.mirror != nil || v.gone {
		t.Errorf("after the deletion of the mirror pod: %v", v)
	}
	i.deleted(version("u", "8", false))
	if v := i.view(); !v.gone || v.pod.ResourceVersion != "8" {
		t.Errorf("after the deletion of the pod: gone %v, version %s", v.gone, v.pod.ResourceVersion)
	}
}

// TestInboxNews: a round takes all news once, except that a pod that is gone stays so.
func TestInboxNews(t *testing.T) {
	i := &inbox{wake: signal.New(), pod: version("u", "1", false)}
	i.keep(RefsChanged)
	if woken(i) {
		t.Error("news that a round gives back wakes the worker at once")
	}
	i.notify(Gone)
	i.finish(result{key: "start/c"})
	if !woken(i) {
		t.Error("an action that ends does not wake the worker")
	}
	news, ended := i.take()
	if news != RefsChanged|RuntimeChanged|Gone || len(ended) != 1 {
		t.Errorf("news %b, %d results", news, len(ended))
	}
	if news, ended = i.take(); news != Gone || len(ended) != 0 {
		t.Errorf("the second time: news %b, %d results", news, len(ended))
	}
}

// TestEviction: the first verdict counts, and those who wait are notified once.
func TestEviction(t *testing.T) {
	e := &eviction{}
	e.complete() // of a pod that was not evicted
	if e.leaving() != nil || e.hasLeft() || e.verdict() != nil {
		t.Error("a pod that was not evicted has left, or leaves")
	}
	over := e.begin(decide.End{Reason: "first"})
	if e.begin(decide.End{Reason: "second"}) != nil || e.verdict().Reason != "first" || e.leaving() != over {
		t.Errorf("the verdict is %v", e.verdict())
	}
	select {
	case <-over:
		t.Error("it is over before anything has ended")
	default:
	}
	e.complete()
	e.complete()
	<-over
	if e.leaving() != nil || !e.hasLeft() {
		t.Error("an eviction that is over is still under way")
	}
}

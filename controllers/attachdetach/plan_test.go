// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/apitest"
	"keelson/api/core/volume"
)

var one = csiVolume{
	pv:        "one",
	driver:    "d.example.com",
	handle:    "h1",
	exclusive: true,
}

func TestNames(t *testing.T) {
	if got := one.attachment("n1"); !managedName.MatchString(got) {
		t.Errorf("attachment is called %q", got)
	}
	if got := one.unique(); got != "kubernetes.io/csi/d.example.com^h1" {
		t.Errorf("volume is called %q", got)
	}
}

func testNode(ready corev1.ConditionStatus, edit ...func(*corev1.Node)) *corev1.Node {
	managed := func(n *corev1.Node) { n.Annotations = map[string]string{volume.AnnotationManaged: "true"} }
	base := []func(*corev1.Node){managed, apitest.Condition(corev1.NodeReady, ready)}
	return apitest.Node("n1", append(base, edit...)...)
}

func has(d csiVolume, attached bool) attachment {
	return attachment{
		volume: d,
		object: &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: d.attachment("n1")},
			Status:     storagev1.VolumeAttachmentStatus{Attached: attached},
		},
	}
}

// story writes a plan in one line.
func story(steps plan) string {
	var out []string
	add := func(verb, what string) { out = append(out, verb+" "+what) }
	for _, r := range steps.report {
		add("report", strings.TrimPrefix(string(r.Name), "kubernetes.io/csi/d.example.com^"))
	}
	for _, w := range steps.attach {
		add("attach", w.volume.pv)
	}
	for _, w := range steps.refused {
		add("refuse", w.volume.pv)
	}
	for _, d := range steps.detach {
		add("detach", strings.TrimSpace(d.volume.pv+" "+d.forceReason))
	}
	if steps.requeueAfter > 0 {
		add("again", steps.requeueAfter.String())
	}
	return strings.Join(out, ", ")
}

func TestDecide(t *testing.T) {
	now := time.Now()
	shared := csiVolume{pv: "shared", driver: "d.example.com", handle: "h2"}
	using := []corev1.UniqueVolumeName{one.unique()}
	idleFor := func(d time.Duration) attachment {
		a := has(one, true)
		a.since = now.Add(-d)
		return a
	}
	going := has(one, true)
	going.deleting = true
	nameless := has(one, true)
	nameless.volume = csiVolume{pv: "one", driver: one.driver}
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	}
	alone := func(n *corev1.Node) { n.Annotations = nil }
	wantsOne := []wantedVolume{{volume: one}}
	good := testNode(corev1.ConditionTrue)
	bad := testNode(corev1.ConditionUnknown)
	for name, c := range map[string]struct {
		v    nodeView
		want string
	}{
		"nothing":    {nodeView{node: good}, ""},
		"wanted":     {nodeView{node: good, wants: wantsOne}, "attach one"},
		"on its way": {nodeView{node: good, wants: wantsOne, have: []attachment{has(one, false)}}, ""},
		"there": {
			nodeView{node: good, wants: wantsOne, have: []attachment{has(one, true)}}, "report h1",
		},
		"wanted again while it goes": {nodeView{node: good, wants: wantsOne, have: []attachment{going}}, ""},
		"elsewhere": {
			nodeView{node: good, wants: wantsOne, attachedElsewhere: map[string][]string{"one": {"n2"}}}, "refuse one",
		},
		"elsewhere by rumour": {nodeView{
			node:              good,
			wants:             wantsOne,
			attachedElsewhere: map[string][]string{"one": {"n2"}},
			assumed:           true,
		}, "refuse one, again 1m0s"},
		"elsewhere, shared": {
			nodeView{
				node:  good,
				wants: []wantedVolume{{volume: shared}},
				attachedElsewhere: map[string][]string{
					"shared": {"n2"},
				},
			}, "attach shared",
		},
		"free":                     {nodeView{node: good, have: []attachment{has(one, true)}}, "detach one"},
		"free, was never attached": {nodeView{node: good, have: []attachment{has(one, false)}}, "detach one"},
		"in use": {
			nodeView{node: good, inUse: using, have: []attachment{idleFor(time.Hour)}}, "report h1",
		},
		"in use, node just lost": {
			nodeView{node: bad, inUse: using, have: []attachment{has(one, true)}}, "report h1, again 6m0s",
		},
		"in use, node lost a while": {
			nodeView{node: bad, inUse: using, have: []attachment{idleFor(4 * time.Minute)}}, "report h1, again 2m0s",
		},
		"in use, node lost too long": {
			nodeView{node: bad, inUse: using, have: []attachment{idleFor(6 * time.Minute)}}, "detach one timeout",
		},
		"in use, node lost, no force": {nodeView{
			node:          bad,
			inUse:         using,
			noForceDetach: true,
			have:          []attachment{idleFor(time.Hour)},
		}, "report h1"},
		"wanted on a lost node": {nodeView{
			node:  bad,
			inUse: using,
			wants: wantsOne,
			have:  []attachment{idleFor(time.Hour)},
		}, "report h1"},
		"out of service": {nodeView{
			node:          testNode(corev1.ConditionUnknown, taint),
			noForceDetach: true,
			inUse:         using,
			have:          []attachment{has(one, true)},
		}, "detach one out-of-service"},
		"no node, said that it does not use it": {
			nodeView{known: true, wants: wantsOne, have: []attachment{has(one, true)}}, "detach one",
		},
		"no node, used it": {
			nodeView{known: true, inUse: using, have: []attachment{has(one, true)}}, "report h1, again 6m0s",
		},
		"no node, use unknown": {
			nodeView{have: []attachment{idleFor(time.Minute)}}, "report h1, again 5m0s",
		},
		"no node, use unknown, for long": {
			nodeView{have: []attachment{idleFor(6 * time.Minute)}}, "detach one timeout",
		},
		"node attaches by itself": {
			nodeView{
				node:  testNode(corev1.ConditionTrue, alone),
				wants: wantsOne,
				have:  []attachment{has(shared, true)},
			}, "",
		},
		"volume is gone, node uses one of it": {
			nodeView{node: good, inUse: using, have: []attachment{nameless}}, "",
		},
		"volume is gone, node uses none of such": {nodeView{node: good, have: []attachment{nameless}}, "detach one"},
	} {
		c.v.name = "n1"
		c.v.now = now
		if c.v.node != nil {
			c.v.known = true
		}
		if got := story(decide(c.v)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestNeeds(t *testing.T) {
	run := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	done := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	for name, c := range map[string]struct {
		phase   corev1.PodPhase
		deleted bool
		s       []corev1.ContainerStatus
		keep    bool
		want    bool
	}{
		"runs":                       {corev1.PodRunning, false, []corev1.ContainerStatus{run}, false, true},
		"just bound":                 {corev1.PodPending, false, nil, false, true},
		"finished":                   {corev1.PodSucceeded, false, []corev1.ContainerStatus{done}, false, false},
		"finished, kept":             {corev1.PodSucceeded, false, []corev1.ContainerStatus{done}, true, true},
		"deleted, runs":              {corev1.PodRunning, true, []corev1.ContainerStatus{done, run}, false, true},
		"deleted, ended":             {corev1.PodRunning, true, []corev1.ContainerStatus{done}, false, false},
		"deleted before it ever ran": {corev1.PodPending, true, nil, false, false},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: c.phase, ContainerStatuses: c.s}}
		if c.deleted {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}
		n := testNode(corev1.ConditionTrue)
		if c.keep {
			n.Annotations[volume.AnnotationKeeps] = "true"
		}
		if got := needs(p, n); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestHolders(t *testing.T) {
	pods := func(names ...string) (out []*corev1.Pod) {
		for _, n := range names {
			ns, name, _ := strings.Cut(n, "/")
			out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}})
		}
		return out
	}
	var got []string
	for _, users := range [][]string{nil, {"a/y", "a/x"}, {"b/z", "c/z"}, {"a/x", "b/z"}} {
		got = append(got, userNames("a", pods(users...)))
	}
	want := []string{
		"Volume is already exclusively attached to one node and can't be attached to another",
		"Volume is already used by pod(s) x, y",
		"Volume is already used by 2 pod(s) in different namespaces",
		"Volume is already used by pod(s) x and 1 pod(s) in different namespaces",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

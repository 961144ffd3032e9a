// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/controllers/framework"
)

const (
	keeps   = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	deletes = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
)

func ownedBy(apiVersion, kind, name, uid string) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion:         apiVersion,
		Kind:               kind,
		Name:               name,
		UID:                types.UID(uid),
		Controller:         &yes,
		BlockOwnerDeletion: &yes,
	}
}

func TestClaimOwners(t *testing.T) {
	theSet := ownedBy("apps/v1", "StatefulSet", "web", "web")
	pod0 := ownedBy("v1", "Pod", "web-0", "web-0")
	pod1 := ownedBy("v1", "Pod", "web-1", "web-1")
	friend := metav1.OwnerReference{
		APIVersion: "v1",
		Kind:       "ConfigMap",
		Name:       "c",
		UID:        "c",
	}
	other := ownedBy("v1", "Other", "o", "o")
	tests := []struct {
		name                string
		onDeleted, onScaled appsv1.PersistentVolumeClaimRetentionPolicyType
		n                   int // 0 is wanted, 1 is not
		has                 []metav1.OwnerReference
		want                string // owners; "-" for no change
		foreign             bool
	}{
		{"no owner", keeps, keeps, 0, nil, "-", false},
		{"the set and the pod let go", keeps, keeps, 0, []metav1.OwnerReference{theSet, pod0, friend}, "c", false},
		{"deleted with the set", deletes, keeps, 0, []metav1.OwnerReference{friend}, "c web", false},
		{"as it is", deletes, keeps, 0, []metav1.OwnerReference{theSet}, "-", false},
		{"condemned, deleted with the set", deletes, keeps, 1, nil, "web", false},
		{"wanted, deleted when scaled", keeps, deletes, 0, nil, "-", false},
		{"wanted again", keeps, deletes, 0, []metav1.OwnerReference{pod0}, "", false},
		{"condemned, deleted when scaled", keeps, deletes, 1, nil, "web-1", false},
		{"wanted, deleted with both", deletes, deletes, 0, []metav1.OwnerReference{pod0}, "web", false},
		{"condemned, deleted with both", deletes, deletes, 1, []metav1.OwnerReference{theSet}, "web-1", false},
		{
			"a set before this one", deletes, keeps, 0, []metav1.OwnerReference{
				ownedBy("apps/v1", "StatefulSet", "web", "gone"),
			}, "-", false,
		},
		{
			"a pod before this one", keeps, deletes, 1,
			[]metav1.OwnerReference{ownedBy("v1", "Pod", "web-1", "gone")},
			"-", false,
		},
		{"another's", deletes, deletes, 0, []metav1.OwnerReference{other}, "-", true},
		{"another's, we let go", deletes, deletes, 1, []metav1.OwnerReference{other, pod1}, "o", true},
		{"another's does not matter with Retain", keeps, keeps, 0, []metav1.OwnerReference{other}, "-", false},
		{"not as a controller", deletes, keeps, 0, []metav1.OwnerReference{{
			APIVersion: "apps/v1",
			Kind:       "StatefulSet",
			Name:       "web",
			UID:        "web",
		}}, "web", false},
	}
	for _, tt := range tests {
		s := newSet(1, withClaims(tt.onDeleted, tt.onScaled))
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tt.has}}
		o := claimOwners(claim, s, tt.n, types.UID(fmt.Sprintf("web-%d", tt.n)))
		got := "-"
		if o.change {
			var names []string
			for _, r := range o.refs {
				names = append(names, r.Name)
			}
			got = strings.Join(names, " ")
		}
		if got != tt.want || o.foreign != tt.foreign {
			t.Errorf("%s: got %q, foreign %v; want %q, %v", tt.name, got, o.foreign, tt.want, tt.foreign)
		}
	}
}

func TestDecideClaims(t *testing.T) {
	claim := func(refs ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: refs}}
	}
	type claims = map[string]*corev1.PersistentVolumeClaim
	retain := newSet(1, withClaims(keeps, keeps))
	scaled := newSet(1, withClaims(keeps, deletes))
	tests := []struct {
		name   string
		set    *appsv1.StatefulSet
		claims claims
		pods   []*corev1.Pod
		want   string
	}{
		{"a claim that was kept is used again", retain, claims{"data-web-0": claim()}, nil, "create 0 new"},
		{"a waiting pod gets the claim it lacks", retain, nil, []*corev1.Pod{podOf(retain, 0, pending)}, "claims 0"},
		{"a running one has no need", retain, nil, []*corev1.Pod{podOf(retain, 0)}, ""},
		{
			"the claim of a pod before must go first", scaled,
			claims{"data-web-0": claim(ownedBy("v1", "Pod", "web-0", "gone"))},
			nil, "",
		},
		{
			"that of a set before too, whatever is kept", retain,
			claims{"data-web-0": claim(ownedBy("apps/v1", "StatefulSet", "web", "gone"))},
			nil, "",
		},
		{
			"a pod before, and its claim is kept from now on", retain,
			claims{"data-web-0": claim(ownedBy("v1", "Pod", "web-0", "gone"))},
			nil, "",
		},
		{
			"a condemned pod takes its claim along", scaled,
			claims{"data-web-0": claim(), "data-web-1": claim()},
			[]*corev1.Pod{podOf(scaled, 0), podOf(scaled, 1)},
			"own 1 | remove 1",
		},
		{
			"a pod without the set's volume", retain, claims{"data-web-0": claim()}, []*corev1.Pod{
				podOf(newSet(1), 0),
			}, "identify 0",
		},
	}
	for _, tt := range tests {
		if got := inWords(decide(snap(tt.set, tt.claims, tt.pods...))); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestClaimsFree: the cache knows an old state of a claim that a pod is to use again (seed 200851 of the simulation).
func TestClaimsFree(t *testing.T) {
	now := metav1.Now()
	claim := func(edit func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data-web-0"}}
		edit(c)
		return c
	}
	owner := func(refs ...metav1.OwnerReference) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = refs }
	}
	for _, tt := range []struct {
		name  string
		live  []runtime.Object
		fails bool
	}{
		{"as it is known", []runtime.Object{claim(owner(ownedBy("apps/v1", "StatefulSet", "web", "web")))}, false},
		{"given to the pod before", []runtime.Object{claim(owner(ownedBy("v1", "Pod", "web-0", "gone")))}, true},
		{"being deleted", []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp = &now
			c.Finalizers = []string{"x/y"}
		})}, true},
		{"gone", nil, true},
	} {
		known := claim(owner(ownedBy("apps/v1", "StatefulSet", "web", "web")))
		s := snap(newSet(1, withClaims(deletes, deletes)), map[string]*corev1.PersistentVolumeClaim{
			"data-web-0": known,
		})
		a := &executor{
			Controller: &Controller{env: &framework.Env{Client: &client.Client{Interface: client.Plain(clienttest.New(tt.live...))}}},
			s:          s,
		}
		err := a.claimsAvailable(t.Context(), 0)
		if (err != nil) != tt.fails || err != nil && !errors.Is(err, framework.ErrStale) {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
}

// TestLeavingClaimIsWaitedFor: a claim that is being deleted is no failure, which would be a warning, but the pass
// comes too early; a failure in the same pass is one.
func TestLeavingClaimIsWaitedFor(t *testing.T) {
	now := metav1.Now()
	going := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace:         "default",
		Name:              "data-web-0",
		DeletionTimestamp: &now,
		Finalizers:        []string{"x/y"},
	}}
	set := newSet(1, withClaims(keeps, keeps))
	other := *set.Spec.VolumeClaimTemplates[0].DeepCopy()
	other.Name = "logs"
	for name, refused := range map[string]error{"alone": nil, "with a failure": errors.New("disk on fire")} {
		c := clienttest.New()
		if refused != nil {
			set.Spec.VolumeClaimTemplates = append(set.Spec.VolumeClaimTemplates[:1:1], other)
			c.PrependReactor("create", "persistentvolumeclaims",
				func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
		} else {
			set.Spec.VolumeClaimTemplates = set.Spec.VolumeClaimTemplates[:1:1]
		}
		s := snap(set, map[string]*corev1.PersistentVolumeClaim{"data-web-0": going})
		env := &framework.Env{Client: &client.Client{Interface: client.Plain(c)}, Events: record.NewFakeRecorder(10)}
		err := (&executor{Controller: &Controller{env: env}, s: s}).ensureClaims(t.Context(), 0)
		if err == nil || errors.Is(err, framework.ErrStale) != (refused == nil) {
			t.Errorf("%s: got %v, stale %v", name, err, errors.Is(err, framework.ErrStale))
		}
	}
}

func TestNewPodAndClaims(t *testing.T) {
	set := newSet(1, withClaims(deletes, keeps))
	set.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: "tmp"}}
	set.Spec.VolumeClaimTemplates[0].Labels = map[string]string{"app": "overruled", "tier": "db"}
	p := newPod(set, &set.Spec.Template, "new", 0)
	got := strings.TrimSpace(fmt.Sprintln(p.Name, p.Spec.Hostname, p.Spec.Subdomain, p.Labels,
		p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, len(p.Spec.Volumes), p.OwnerReferences[0].Name))
	want := "web-0 web-0 svc map[app:web apps.kubernetes.io/pod-index:0 controller-revision-hash:new " +
		"statefulset.kubernetes.io/pod-name:web-0] data-web-0 2 web"
	if got != want {
		t.Errorf("pod: got %s, want %s", got, want)
	}
	c := newClaims(set, 0)[0]
	if got, want := strings.TrimSpace(fmt.Sprintln(c.Name, c.Labels, c.OwnerReferences[0].UID)),
		"data-web-0 map[app:web tier:db] web"; got != want {
		t.Errorf("claim: got %s, want %s", got, want)
	}
	if l := set.Spec.VolumeClaimTemplates[0].Labels["app"]; l != "overruled" {
		t.Errorf("the template was changed: app=%s", l)
	}
}

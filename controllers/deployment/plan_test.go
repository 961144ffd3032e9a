// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"keelson/controllers/framework"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func deploy(n int32, surge, unavailable string, f ...func(*appsv1.Deployment)) *appsv1.Deployment {
	intOrString := intstr.Parse(surge)
	u := intstr.Parse(unavailable)
	deadline := int32(600)
	history := int32(10)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name:       "web",
			Namespace:  "default",
			UID:        "d",
			Generation: 1,
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n,
			Template: template("v2"),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &intOrString, MaxUnavailable: &u},
			},
			ProgressDeadlineSeconds: &deadline,
			RevisionHistoryLimit:    &history,
		},
	}
	for _, g := range f {
		g(deployment)
	}
	return deployment
}

// rs is a set of d's with the image as its template, whose pods are all there and available.
func rs(d *appsv1.Deployment, image string, n int32, rev int, f ...func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
	old := d.DeepCopy()
	old.Spec.Template = template(image)
	set := newSet(old)
	set.Name = "web-" + image
	set.UID = types.UID(image)
	set.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(rev-100) * time.Hour))
	set.Spec.Replicas = &n
	setRevision(set, int64(rev))
	setSizeAnnotations(d, set.Annotations)
	set.Status = appsv1.ReplicaSetStatus{Replicas: n, ReadyReplicas: n, AvailableReplicas: n}
	for _, g := range f {
		g(set)
	}
	return set
}

func availableOnly(n int32) func(*appsv1.ReplicaSet) {
	return func(r *appsv1.ReplicaSet) {
		r.Status.ReadyReplicas = n
		r.Status.AvailableReplicas = n
	}
}

func sizedFor(n int32) func(*appsv1.ReplicaSet) {
	return func(r *appsv1.ReplicaSet) {
		r.Annotations[desiredAnnotation] = fmt.Sprint(n)
		r.Annotations[maxAnnotation] = fmt.Sprint(n)
	}
}

func recreateStrategy(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}
func pausedRollout(d *appsv1.Deployment) { d.Spec.Paused = true }

// shown is a plan in short: "+new=3" creates, "web-v1:3>2" scales, "-web-v1" removes.
func shown(p plan) []string {
	var out []string
	if p.create != nil {
		out = append(out, fmt.Sprintf("+new=%d", *p.create.Spec.Replicas))
	}
	for _, c := range p.changes {
		if n := replicas(c.set); n != c.oldReplicas {
			out = append(out, fmt.Sprintf("%s:%d>%d", c.set.Name, c.oldReplicas, n))
		}
	}
	for _, r := range p.remove {
		out = append(out, "-"+r.Name)
	}
	return out
}

func TestDecide(t *testing.T) {
	tests := []struct {
		name string
		d    *appsv1.Deployment
		sets func(d *appsv1.Deployment) []*appsv1.ReplicaSet
		pods bool
		want []string
	}{
		{"first rollout", deploy(3, "25%", "25%"), nil, false, []string{"+new=3"}},
		{"surge rounds up", deploy(4, "30%", "0"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 4, 1)}
		}, false, []string{"+new=2"}},
		{"down as far as available", deploy(4, "1", "25%"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 4, 1), rs(d, "v2", 1, 2)}
		}, false, []string{"web-v1:4>2"}},
		{"a status from before the old set was scaled down", deploy(4, "2", "0"), func(
			d *appsv1.Deployment,
		) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 5, 1, availableOnly(8)), rs(d, "v2", 1, 2, availableOnly(0))}
		}, false, []string{"web-v1:5>4"}},
		{"unavailable old pods go first", deploy(4, "1", "0"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 4, 1, availableOnly(1)), rs(d, "v2", 1, 2)}
		}, false, []string{"web-v1:4>3"}},
		{"waits for the new pods", deploy(3, "1", "0"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 3, 1), rs(d, "v2", 1, 2, availableOnly(0))}
		}, false, nil},
		{"rollover drops the middle set", deploy(3, "1", "1"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 2, 1), rs(d, "v1b", 2, 2, availableOnly(0)), rs(d, "v2", 0, 3)}
		}, false, []string{"web-v1b:2>0"}},
		{"both limits zero still moves", deploy(2, "0", "0"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 2, 1), rs(d, "v2", 0, 2)}
		}, false, []string{"web-v1:2>1"}},
		{"too large a current set", deploy(2, "1", "1"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v2", 5, 1)}
		}, false, []string{"web-v2:5>2"}},
		{"scaling one set", deploy(5, "1", "1"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v2", 3, 1, sizedFor(3))}
		}, false, []string{"web-v2:3>5"}},
		{"scaling in proportion", deploy(30, "3", "2"), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			was := func(r *appsv1.ReplicaSet) {
				r.Annotations[desiredAnnotation] = "10"
				r.Annotations[maxAnnotation] = "13"
			}
			return []*appsv1.ReplicaSet{rs(d, "v1", 8, 1, was), rs(d, "v2", 5, 2, was)}
		}, false, []string{"web-v1:8>20", "web-v2:5>13"}},
		{"paused scales but does not roll", deploy(4, "1", "1", pausedRollout), func(
			d *appsv1.Deployment,
		) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 3, 1, sizedFor(3))}
		}, false, []string{"web-v1:3>4"}},
		{"paused creates nothing", deploy(4, "1", "1", pausedRollout), nil, false, nil},
		{"recreate stops the old", deploy(3, "0", "0", recreateStrategy), func(
			d *appsv1.Deployment,
		) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 3, 1)}
		}, true, []string{"web-v1:3>0"}},
		{"recreate waits for the old pods", deploy(3, "0", "0", recreateStrategy), func(
			d *appsv1.Deployment,
		) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 0, 1)}
		}, true, nil},
		{"recreate then starts the new", deploy(3, "0", "0", recreateStrategy), func(
			d *appsv1.Deployment,
		) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v1", 0, 1)}
		}, false, []string{"+new=3"}},
		{"history beyond the limit goes, oldest first", deploy(1, "1", "1", func(d *appsv1.Deployment) {
			one := int32(1)
			d.Spec.RevisionHistoryLimit = &one
			d.Status = appsv1.DeploymentStatus{
				Replicas:           1,
				UpdatedReplicas:    1,
				AvailableReplicas:  1,
				ObservedGeneration: 1,
			}
		}), func(d *appsv1.Deployment) []*appsv1.ReplicaSet {
			return []*appsv1.ReplicaSet{rs(d, "v0", 0, 1), rs(d, "v1", 0, 2), rs(d, "v1b", 0, 3), rs(d, "v2", 1, 4)}
		}, false, []string{"-web-v0", "-web-v1"}},
	}
	for _, tt := range tests {
		var sets []*appsv1.ReplicaSet
		if tt.sets != nil {
			sets = tt.sets(tt.d)
		}
		p := decide(snapshot{
			d:       tt.d,
			sets:    sets,
			now:     now,
			oldPods: func(types.UID) bool { return tt.pods },
		})
		got := shown(p)
		slices.Sort(got)
		slices.Sort(tt.want)
		if len(got)+len(tt.want) > 0 && !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRevisions(t *testing.T) {
	d := deploy(1, "1", "1", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{
			"kubernetes.io/change-cause":       "why",
			revisionAnnotation:                 "2",
			corev1.LastAppliedConfigAnnotation: "{}",
		}
	})
	// Rolled back: v2 was revision 1 and shall be 3.
	p := decide(snapshot{d: d, sets: []*appsv1.ReplicaSet{rs(d, "v2", 0, 1), rs(d, "v1", 1, 2)}, now: now})
	if p.revision != "3" || len(p.changes) == 0 {
		t.Fatalf("revision: got %q with %d changes, want 3", p.revision, len(p.changes))
	}
	got := p.changes[0].set.Annotations
	want := map[string]string{
		revisionAnnotation:           "3",
		historyAnnotation:            "1",
		"kubernetes.io/change-cause": "why",
		desiredAnnotation:            "1",
		maxAnnotation:                "2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestHash(t *testing.T) {
	a := template("v1")
	b := template("v2")
	one := int32(1)
	two := int32(2)
	seen := map[string]bool{}
	for _, h := range []string{
		templateHash(&a, nil), templateHash(&b, nil), templateHash(&a, &one), templateHash(&a, &two),
	} {
		if seen[h] || h == "" {
			t.Errorf("hash %q is not unique", h)
		}
		seen[h] = true
	}
	labelled := template("v1")
	labelled.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "x"
	if !sameTemplate(&a, &labelled) || sameTemplate(&a, &b) {
		t.Error("templates are compared wrongly")
	}
	if len(a.Labels) != 1 || labelled.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != "x" {
		t.Error("comparing modified a template")
	}
}

// world carries out plans and lets pods come up at random, as a set's controller and kubelets would.
type world struct {
	d    *appsv1.Deployment
	sets []*appsv1.ReplicaSet
	n    int
}

func (w *world) pass() bool {
	snap := snapshot{
		d:       w.d,
		sets:    w.sets,
		now:     now,
		oldPods: func(types.UID) bool { return false },
	}
	plan := decide(snap)
	for _, c := range plan.changes {
		for i := range w.sets {
			if w.sets[i].UID == c.set.UID {
				w.sets[i] = c.set
			}
		}
	}
	w.sets = slices.DeleteFunc(w.sets, func(r *appsv1.ReplicaSet) bool { return slices.Contains(plan.remove, r) })
	current := plan.current
	if plan.create != nil {
		w.n++
		plan.create.UID = types.UID(fmt.Sprintf("new%d", w.n))
		plan.create.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(w.n) * time.Minute))
		w.sets = append(w.sets, plan.create)
		current = plan.create
	}
	for _, r := range w.sets {
		if current != nil && r.UID == current.UID {
			current = r
		}
	}
	st, _ := status(snap, plan, current, w.sets)
	changed := plan.create != nil || len(plan.changes)+len(plan.remove) > 0 || !cmp.Equal(st, w.d.Status)
	w.d = w.d.DeepCopy()
	w.d.Status = st
	if plan.revision != "" {
		w.d.Annotations = map[string]string{revisionAnnotation: plan.revision}
	}
	return changed
}

func (w *world) kubelets(t *rapid.T, all bool) {
	for i, r := range w.sets {
		r = r.DeepCopy()
		n := replicas(r)
		r.Status.Replicas = n
		up := n
		if !all && n > r.Status.AvailableReplicas {
			up = rapid.Int32Range(r.Status.AvailableReplicas, n).Draw(t, "available")
		}
		r.Status.AvailableReplicas = min(up, n)
		r.Status.ReadyReplicas = min(up, n)
		w.sets[i] = r
	}
}

func TestRolloutKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := deploy(rapid.Int32Range(0, 20).Draw(t, "replicas"),
			rapid.SampledFrom([]string{"0", "1", "3", "25%", "100%"}).Draw(t, "surge"),
			rapid.SampledFrom([]string{"0", "1", "2", "25%", "100%"}).Draw(t, "unavailable"))
		w := &world{d: d}
		for w.pass() {
			w.kubelets(t, true)
		}
		for round := range rapid.IntRange(1, 3).Draw(t, "rollouts") {
			w.d.Spec.Template = template(fmt.Sprintf("image%d", round))
			w.d.Generation++
			steps := 0
			for w.pass() || !isComplete(w.d, &w.d.Status) {
				surge, unavailable := limits(w.d)
				if n := specified(w.sets); n > desiredReplicas(w.d)+surge {
					t.Fatalf("%d pods wanted, at most %d allowed", n, desiredReplicas(w.d)+surge)
				}
				// What is available now and stays: a set's controller removes pods that are not available first.
				left := sum(w.sets, func(r *appsv1.ReplicaSet) int32 {
					return min(replicas(r), r.Status.AvailableReplicas)
				})
				if left < desiredReplicas(w.d)-unavailable {
					t.Fatalf("%d available, at least %d promised", left, desiredReplicas(w.d)-unavailable)
				}
				if steps++; steps > 300 {
					t.Fatalf("no end after %d steps: %v", steps,
						shown(decide(snapshot{d: w.d, sets: w.sets, now: now})))
				}
				w.kubelets(t, steps%5 == 0)
			}
			if w.pass() {
				t.Fatal("a finished rollout changed something")
			}
			if c := framework.ConditionOf(w.d.Status.Conditions, appsv1.DeploymentProgressing); c == nil ||
				c.Reason != newSetAvailable {
				t.Fatalf("progressing: got %+v", c)
			}
		}
	})
}

// A Deployment may have a name of 253 characters; its sets have room for the hash.
func TestLongName(t *testing.T) {
	for _, end := range []string{"d", "." + strings.Repeat("d", 11)} {
		name := strings.Repeat("d", validation.DNS1123SubdomainMaxLength-len(end)) + end
		d := deploy(1, "1", "1", func(d *appsv1.Deployment) { d.Name = name })
		set := decide(snapshot{d: d, now: now}).create
		hash := "-" + set.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		if errs := validation.IsDNS1123Subdomain(set.Name); len(errs) > 0 || !strings.HasSuffix(set.Name, hash) ||
			!strings.HasPrefix(name, strings.TrimSuffix(set.Name, hash)) {
			t.Errorf("%s: got set %s, %v", name, set.Name, errs)
		}
	}
}

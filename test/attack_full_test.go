// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fullEnv is how long attackFullStore keeps the store at its quota: a minute by default. An hour is
//
//	KEELSON_ATTACK=1 KEELSON_ATTACK_FULL=1h hack/test -timeout 90m -run '^TestAttack$/^full-store$' ./test
const fullEnv = "KEELSON_ATTACK_FULL"

// fullMany is the number of pods by which an EndpointSlice becomes larger at the quota: more than the room that fill
// leaves.
const fullMany = 6

// Bounds of what a full store does.
const (
	fullRound    = 5 * time.Second
	fullPatience = 30 * time.Second
)

const fullManifest = `
apiVersion: v1
kind: Pod
metadata: {name: ready, labels: {app: "on"}}
spec:
  containers:
  - name: c
    image: keelson.local/hello
    readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Service
metadata: {name: toggled}
spec: {selector: {app: none}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: steady}
spec: {selector: {app: "on"}, ports: [{port: 80}]}
`

// fullStore is a cluster whose store is at its quota, and what its rounds have measured.
type fullStore struct {
	*live
	admin, tenant *kubernetes.Clientset
	filled        int // objects made to fill the store, for their names
	took          map[string]time.Duration
	rounds        int
}

// attackFullStore keeps the store at its quota. In each round a probe turns, EndpointSlices follow and grow, a
// finalizer goes, objects and pods are deleted and made again in the room that this gives, and what is larger stays
// refused. Leases are renewed, nodes stay Ready, and
// neither memory nor disk grows.
func attackFullStore(t *testing.T, c *live) {
	span := time.Minute
	if text := os.Getenv(fullEnv); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", fullEnv, err)
		}
	}
	c.must(t, "create", "serviceaccount", "tenant")
	c.must(t, "create", "role", "all", "--verb=*", "--resource=pods,configmaps,services")
	c.must(t, "create", "rolebinding", "tenant", "--role=all", "--serviceaccount=default:tenant")
	c.apply(t, fullManifest)
	for i := range fullMany {
		c.must(t, "run", fmt.Sprintf("many-%d", i), "--image=keelson.local/hello", "--labels=app=many")
	}
	c.must(t, "wait", "pod", "-l", "app=many", "--for=condition=Ready", "--timeout=60s")
	c.eventually(t, "true", "get", "pod", "ready", "-o", "jsonpath={.status.containerStatuses[0].started}")
	cfg := c.config(t)
	admin, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg = c.config(t)
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:default:tenant",
		Groups:   []string{"system:authenticated"},
	}
	tenant, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fullStore{live: c, admin: admin, tenant: tenant, took: map[string]time.Duration{}}
	f.fill(t, "base", 100_000)
	end := time.Now().Add(span)
	tick := time.NewTicker(fullRound)
	defer tick.Stop()
	for f.makeRoom(t); ; f.makeRoom(t) {
		f.round(t)
		switch {
		case f.rounds == 3, f.rounds%120 == 0: // after a warm-up, then each ten minutes
			f.report(t)
		}
		if time.Now().After(end) {
			break
		}
		<-tick.C
	}
	f.report(t)
}

// round runs at the quota.
func (f *fullStore) round(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	f.rounds++
	f.fill(t, "rest", 1<<14)
	if _, err := f.tenant.CoreV1().ConfigMaps("default").Create(ctx, f.object("rest", 100_000),
		metav1.CreateOptions{}); err == nil || err.Error() != noSpace {
		t.Errorf("round %d: a new object: got %v, want %s", f.rounds, err, noSpace)
	}
	ready := f.rounds%2 == 1
	command := "rm"
	if ready {
		command = "touch"
	}
	f.must(t, "exec", "ready", "--", command, "/ready")
	f.within(t, "status", func() string {
		p, err := f.admin.CoreV1().Pods("default").Get(ctx, "ready", metav1.GetOptions{})
		return differs(err, err == nil && podReady(p) == ready)
	})
	f.within(t, "slice", func() string { return f.sliceOf(ctx, "steady", 1, ready) })
	f.selects(t, "many")
	f.within(t, "larger slice", func() string { return f.sliceOf(ctx, "toggled", fullMany, true) })
	f.within(t, "finalizer and deletion", func() string {
		maps := f.tenant.CoreV1().ConfigMaps("default")
		if err := maps.Delete(ctx, "held", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err.Error()
		}
		_, err := maps.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err.Error()
		}
		_, err = maps.Get(ctx, "held", metav1.GetOptions{})
		return differs(nil, apierrors.IsNotFound(err))
	})
	grace := int64(1)
	if err := f.tenant.CoreV1().Pods("default").Delete(ctx, "short",
		metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Errorf("round %d: delete a pod: %v", f.rounds, err)
	}
	f.within(t, "deletion of a pod", func() string {
		_, err := f.admin.CoreV1().Pods("default").Get(ctx, "short", metav1.GetOptions{})
		return differs(nil, apierrors.IsNotFound(err))
	})
	f.nodes(t)
}

// makeRoom deletes what filled the store at last, and makes again what the next round deletes.
func (f *fullStore) makeRoom(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	maps := f.tenant.CoreV1().ConfigMaps("default")
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "fill=rest"}); err != nil {
		t.Fatalf("round %d: delete what fills the store: %v", f.rounds, err)
	}
	if f.rounds == 0 {
		if err := maps.Delete(ctx, "base-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.selects(t, "none")
	f.within(t, "smaller slice", func() string { return f.sliceOf(ctx, "toggled", 0, true) })
	held := f.object("held", 10)
	held.Name = "held"
	held.Labels = nil
	held.Finalizers = []string{"example.com/a"}
	if _, err := maps.Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Fatalf("round %d: a new object where there is room: %v", f.rounds, err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "short"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "keelson.local/hello"}}},
	}
	if _, err := f.tenant.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatalf("round %d: a new pod where there is room: %v", f.rounds, err)
	}
	f.within(t, "start of a pod", func() string {
		p, err := f.admin.CoreV1().Pods("default").Get(ctx, "short", metav1.GetOptions{})
		return differs(err, err == nil && podReady(p))
	})
}

// fill creates objects of a set, smaller and smaller ones, until not even a small one has room.
func (f *fullStore) fill(t *testing.T, set string, size int) {
	t.Helper()
	for size > 0 {
		_, err := f.tenant.CoreV1().ConfigMaps("default").Create(t.Context(), f.object(set, size),
			metav1.CreateOptions{})
		switch {
		case err == nil:
		case err.Error() == noSpace:
			size /= 2
		default:
			t.Fatalf("round %d: fill the store: %v", f.rounds, err)
		}
	}
}

func (f *fullStore) object(set string, size int) *corev1.ConfigMap {
	name := fmt.Sprintf("%s-%d", set, f.filled)
	f.filled++
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"fill": set}},
		Data:       map[string]string{"a": strings.Repeat("x", size)},
	}
}

// selects changes what the Service toggled selects.
func (f *fullStore) selects(t *testing.T, app string) {
	t.Helper()
	if _, err := f.tenant.CoreV1().Services("default").Patch(t.Context(), "toggled", types.MergePatchType,
		[]byte(`{"spec":{"selector":{"app":"`+app+`"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("round %d: change a selector: %v", f.rounds, err)
	}
}

// sliceOf is how the endpoints of a Service differ from n that are all ready, or all not.
func (f *fullStore) sliceOf(ctx context.Context, service string, n int, ready bool) string {
	list, err := f.admin.DiscoveryV1().EndpointSlices("default").List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return err.Error()
	}
	got := 0
	for i := range list.Items {
		for _, e := range list.Items[i].Endpoints {
			got++
			if e.Conditions.Ready == nil || *e.Conditions.Ready != ready {
				return fmt.Sprintf("an endpoint of %s is not ready=%v", service, ready)
			}
		}
	}
	return differs(nil, got == n)
}

// nodes measures the age of the nodes' leases, and fails if a node is not Ready.
func (f *fullStore) nodes(t *testing.T) {
	t.Helper()
	leases, err := f.admin.CoordinationV1().Leases("kube-node-lease").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range leases.Items {
		age := time.Since(leases.Items[i].Spec.RenewTime.Time)
		f.took["age of a lease"] = max(f.took["age of a lease"], age)
		if age > time.Duration(*leases.Items[i].Spec.LeaseDurationSeconds)*time.Second/2 {
			t.Errorf("round %d: the lease of %s was renewed %v ago", f.rounds, leases.Items[i].Name, age)
		}
	}
	nodes, err := f.admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		for _, condition := range nodes.Items[i].Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				t.Errorf("round %d: node %s is not Ready: %s", f.rounds, nodes.Items[i].Name, condition.Message)
			}
		}
	}
}

// within waits until check returns nothing, and keeps the longest time that this took.
func (f *fullStore) within(t *testing.T, what string, check func() string) {
	t.Helper()
	began := time.Now()
	for {
		why := check()
		took := time.Since(began)
		if why == "" {
			f.took[what] = max(f.took[what], took)
			return
		}
		if took > fullPatience {
			t.Fatalf("round %d: no %s within %v: %s\n%s", f.rounds, what, fullPatience, why, f.must(t, "get",
				"pods,leases,services,endpointslices", "-A", "-o", "yaml"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// report logs what was measured, and fails if what the process or the store takes has grown out of bounds.
func (f *fullStore) report(t *testing.T) {
	t.Helper()
	disk := int64(0)
	if err := filepath.WalkDir(filepath.Join(f.data, "store"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			var info os.FileInfo
			if info, err = os.Lstat(path); err == nil && info.Mode().IsRegular() {
				disk += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a file that was merged into another
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	used := 0.0
	for line := range strings.Lines(f.must(t, "get", "--raw", "/metrics")) {
		if n, err := fmt.Sscanf(line, "etcd_mvcc_db_total_size_in_use_in_bytes %g", &used); n == 1 && err == nil {
			break
		}
	}
	t.Logf("after %d rounds: %.0f bytes of %d used, store on disk %d kB, memory %d MB, descriptors %d; longest: %v",
		f.rounds, used, attackQuota, disk>>10, f.memory(t, "VmRSS"), f.openFiles(t), f.took)
	if most := attackQuota * 9 / 8; used == 0 || used > float64(most) {
		t.Errorf("the objects take %.0f bytes, want up to %d", used, most)
	}
	if disk > 200<<20 {
		t.Errorf("the store takes %d MB of disk", disk>>20)
	}
}

func podReady(p *corev1.Pod) bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// differs is err, or that something is not as wanted.
func differs(err error, same bool) string {
	switch {
	case err != nil:
		return err.Error()
	case !same:
		return "it is not as wanted"
	}
	return ""
}

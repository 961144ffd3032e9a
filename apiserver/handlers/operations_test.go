// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"keelson/apiserver/servertest"
)

// operations runs through everything that can be done with the objects of one resource, as the conformance suite does.
type operations struct {
	client  dynamic.ResourceInterface // in the namespace, if there are namespaces
	all     dynamic.ResourceInterface // in all of them
	gvr     schema.GroupVersionResource
	verbs   []string
	status  bool // it has the subresource
	minimal func(t *testing.T, i int) *unstructured.Unstructured
}

// named are the resources whose names say something: how the i-th object is made of the minimal one.
var named = map[string]func(o *unstructured.Unstructured, i int){
	"ipaddresses": func(o *unstructured.Unstructured, i int) { o.SetName(fmt.Sprintf("10.96.77.%d", i)) },
	"apiservices": func(o *unstructured.Unstructured, i int) {
		o.SetName(fmt.Sprintf("v%d.ops.example.com", i))
		set(o, fmt.Sprintf("v%d", i), "spec", "version")
		set(o, "ops.example.com", "spec", "group")
	},
	"customresourcedefinitions": func(o *unstructured.Unstructured, i int) {
		o.SetName(fmt.Sprintf("ops%d.ops.example.com", i))
		set(o, "ops.example.com", "spec", "group")
		set(o, map[string]any{
			"plural": fmt.Sprintf("ops%d", i),
			"singular": fmt.Sprintf("op%d",
				i),
			"kind": fmt.Sprintf("Op%d", i),
		}, "spec", "names")
	},
	"clustertrustbundles": func(o *unstructured.Unstructured, i int) { o.SetName(fmt.Sprintf("%s%d", o.GetName(), i)) },
	"services": func(o *unstructured.Unstructured, i int) {
		o.SetName(fmt.Sprintf("ops-%d", i))
		unstructured.RemoveNestedField(o.Object, "spec", "clusterIP") // one address for all three would not do
		unstructured.RemoveNestedField(o.Object, "spec", "clusterIPs")
		set(o, "LoadBalancer", "spec", "type")
	},
}

func set(o *unstructured.Unstructured, value any, path ...string) {
	if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
		panic(err) // a path through something that is no object: the golden file is wrong
	}
}

// statuses are what a patch of the status says, where it is not a list of conditions. A part of the answer must equal
// it.
var statuses = map[string]string{
	"pods":                     `{"message":"ops"}`,
	"namespaces":               `{"conditions":[{"type":"Ops","status":"True","reason":"Test","message":"m"}]}`,
	"nodes":                    `{"nodeInfo":{"bootID":"ops"}}`,
	"services":                 `{"loadBalancer":{"ingress":[{"ip":"203.0.113.1","ipMode":"VIP"}]}}`,
	"persistentvolumes":        `{"phase":"Available","message":"ops"}`,
	"persistentvolumeclaims":   `{"phase":"Bound"}`,
	"resourcequotas":           `{"hard":{"pods":"5"},"used":{"pods":"1"}}`,
	"replicationcontrollers":   `{"replicas":1,"fullyLabeledReplicas":1}`,
	"replicasets":              `{"replicas":1,"fullyLabeledReplicas":1}`,
	"deployments":              `{"replicas":1}`,
	"statefulsets":             `{"replicas":1}`,
	"daemonsets":               `{"desiredNumberScheduled":1}`,
	"jobs":                     `{"active":1,"ready":0}`,
	"cronjobs":                 `{"lastScheduleTime":"2030-01-01T00:00:00Z"}`,
	"horizontalpodautoscalers": `{"currentReplicas":2,"desiredReplicas":3}`,
	"ingresses":                `{"loadBalancer":{"ingress":[{"ip":"169.1.1.1"}]}}`,
	"poddisruptionbudgets":     `{"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1,"expectedPods":2}`,
	"resourceclaims":           `{"allocation":{}}`,
	"volumeattachments":        `{"attached":true,"attachmentMetadata":{"a":"b"}}`,
	"validatingadmissionpolicies": `{"conditions":[{"type":"Ops","status":"True","reason":"Test","message":"m","lastTransitionTime":"2030-01-01T00:00:00Z"}],
		"observedGeneration":1}`,
}

const someCondition = `{"conditions":[{"type":"Ops","status":"True","reason":"Test","message":"m","lastTransitionTime":"2030-01-01T00:00:00Z"}]}`

// TestOperations: create, get, list, watch, patch, update, the status, delete and deletecollection of every kind that
// can be created, as the rows "API operations" of the conformance suite ask of some. Discovery lists the kinds and
// their verbs.
func TestOperations(t *testing.T) {
	running := servertest.Start(t, nil)
	dc, err := discovery.NewDiscoveryClientForConfig(running.Rest)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := dc.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	quiet := rest.CopyConfig(running.Rest)
	quiet.WarningHandler = rest.NoWarnings{}
	client := dynamic.NewForConfigOrDie(quiet)
	n := 0
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		findsGroup(t, running, gv)
		for _, res := range list.APIResources {
			if strings.Contains(res.Name, "/") || !slices.Contains(res.Verbs, "create") ||
				!slices.Contains(res.Verbs, "get") {
				continue
			}
			n++
			ops := operations{
				gvr:   gv.WithResource(res.Name),
				verbs: res.Verbs,
				status: slices.ContainsFunc(list.APIResources, func(s metav1.APIResource) bool {
					// whose status is behind CSIVolumeHealth, which is off
					return s.Name == res.Name+"/status" && res.Name != "csinodes"
				}),
			}
			ops.all = client.Resource(ops.gvr)
			ops.client = client.Resource(ops.gvr)
			if res.Namespaced {
				ops.client = client.Resource(ops.gvr).Namespace("default")
			}
			ops.minimal = func(t *testing.T, i int) *unstructured.Unstructured {
				t.Helper()
				o := minimalOf(t, ops.gvr, i)
				o.SetLabels(map[string]string{"ops": res.Name})
				if res.Namespaced {
					o.SetNamespace("default")
				}
				return o
			}
			t.Run(gv.String()+"/"+res.Name, ops.run)
		}
	}
	if n < 60 {
		t.Errorf("discovery names %d kinds that can be created, that is not all", n)
	}
}

// findsGroup looks a group version up in each of discovery's documents.
func findsGroup(t *testing.T, r *servertest.Running, gv schema.GroupVersion) {
	t.Helper()
	if gv.Group == "" {
		return
	}
	version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	var groups metav1.APIGroupList
	r.Call(t, "GET", "/apis", "").Into(t, &groups)
	if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return g.Name == gv.Group && slices.Contains(g.Versions, version)
	}) {
		t.Errorf("/apis does not name %s", gv)
	}
	var group metav1.APIGroup
	r.Call(t, "GET", "/apis/"+gv.Group, "").Into(t, &group)
	if group.Name != gv.Group || !slices.Contains(group.Versions, version) || group.PreferredVersion.Version == "" {
		t.Errorf("/apis/%s: %+v", gv.Group, group)
	}
}

// minimalOf is the i-th object of a kind, made of the minimal one in its golden file.
func minimalOf(t *testing.T, gvr schema.GroupVersionResource, i int) *unstructured.Unstructured {
	t.Helper()
	group := gvr.Group
	if group == "" {
		group = "core"
	}
	b, err := os.ReadFile(filepath.Join("..", "resources", "testdata", group, gvr.Resource+"."+gvr.Version+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(txtar.Parse(b).Files[0].Data, &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetUID("") // some carry one, for what the kind makes of it
	if change := named[gvr.Resource]; change != nil {
		change(o, i)
	} else {
		o.SetName(fmt.Sprintf("ops-%d", i))
	}
	return o
}

func (o operations) run(t *testing.T) {
	ctx := t.Context()
	mine := metav1.ListOptions{LabelSelector: "ops=" + o.gvr.Resource}
	before, err := o.all.List(ctx, mine)
	if err != nil || len(before.Items) != 0 {
		t.Fatalf("list: %v, %d items", err, len(before.Items))
	}
	watcher, err := o.all.Watch(ctx, metav1.ListOptions{
		LabelSelector:   mine.LabelSelector,
		ResourceVersion: before.GetResourceVersion(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	var first *unstructured.Unstructured
	for i := 1; i <= 3; i++ {
		made, err := o.client.Create(ctx, o.minimal(t, i), metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("create: %v", err)
		}
		if made.GetUID() == "" || made.GetResourceVersion() == "" || made.GetCreationTimestamp() == (metav1.Time{}) {
			t.Errorf("created: %v", made.Object["metadata"])
		}
		o.sees(t, watcher, watch.Added, made.GetName(), "")
		if i == 1 {
			first = made
		}
	}
	if _, err := o.client.Create(ctx, o.minimal(t, 1), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
	got, err := o.client.Get(ctx, first.GetName(), metav1.GetOptions{})
	if err != nil || got.GetUID() != first.GetUID() || got.GetKind() != first.GetKind() ||
		got.GetAPIVersion() != o.gvr.GroupVersion().String() {
		t.Errorf("get: %v, %s %s %s", err, got.GetKind(), got.GetAPIVersion(), got.GetUID())
	}
	o.lists(t, mine, 3)
	o.writes(t, watcher, first.GetName())
	if o.status {
		o.statusOf(t, watcher, first.GetName())
	}
	o.deletes(t, watcher, mine, first.GetName())
}

// lists finds n objects in the namespace and in all.
func (o operations) lists(t *testing.T, mine metav1.ListOptions, n int) {
	t.Helper()
	for where, in := range map[string]dynamic.ResourceInterface{"namespace": o.client, "all": o.all} {
		list, err := in.List(t.Context(), mine)
		if err != nil || len(list.Items) != n || list.GetResourceVersion() == "" || list.GetKind() == "" {
			t.Errorf("list of %s: %v, %d items, want %d", where, err, len(list.Items), n)
		}
	}
}

// writes patches, updates, and loses a race.
func (o operations) writes(t *testing.T, watcher watch.Interface, name string) {
	t.Helper()
	ctx := t.Context()
	old, err := o.client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patched, err := o.client.Patch(ctx, name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"patched":"true"}}}`), metav1.PatchOptions{})
	if err != nil || patched.GetAnnotations()["patched"] != "true" {
		t.Fatalf("patch: %v, %v", err, patched.GetAnnotations())
	}
	o.sees(t, watcher, watch.Modified, name, "patched")
	again, err := o.client.Patch(ctx, name, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"annotations":{"strategic":"true"}}}`), metav1.PatchOptions{})
	if err != nil || again.GetAnnotations()["strategic"] != "true" {
		t.Fatalf("strategic patch: %v, %v", err, again.GetAnnotations())
	}
	o.sees(t, watcher, watch.Modified, name, "strategic")
	again.SetAnnotations(map[string]string{"updated": "true"})
	updated, err := o.client.Update(ctx, again, metav1.UpdateOptions{})
	if err != nil || updated.GetAnnotations()["updated"] != "true" {
		t.Fatalf("update: %v, %v", err, updated.GetAnnotations())
	}
	o.sees(t, watcher, watch.Modified, name, "updated")
	if _, err := o.client.Update(ctx, old, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
	applied := o.minimal(t, 1)
	applied.SetAnnotations(map[string]string{"applied": "true"})
	if _, err := o.client.Apply(ctx, name, applied, metav1.ApplyOptions{FieldManager: "ops", Force: true}); err != nil {
		t.Errorf("apply: %v", err)
	} else {
		o.sees(t, watcher, watch.Modified, name, "applied")
	}
}

// statusOf gets, patches and updates the status; the rest of the object stays as it is.
func (o operations) statusOf(t *testing.T, watcher watch.Interface, name string) {
	t.Helper()
	ctx := t.Context()
	before, err := o.client.Get(ctx, name, metav1.GetOptions{}, "status")
	if err != nil || before.GetName() != name || before.Object["spec"] == nil && o.gvr.Resource != "apiservices" {
		t.Fatalf("get status: %v, %v", err, before)
	}
	text := statuses[o.gvr.Resource]
	if text == "" {
		text = someCondition
	}
	var want map[string]any
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	patched, err := o.client.Patch(ctx, name, types.MergePatchType, []byte(`{"status":`+text+`}`),
		metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatalf("patch of the status: %v", err)
	}
	status, _, _ := unstructured.NestedMap(patched.Object, "status")
	for key, value := range want {
		if fmt.Sprint(status[key]) != fmt.Sprint(value) && !covers(status[key], value) {
			t.Errorf("patched status: %s is %v, want %v", key, status[key], value)
		}
	}
	o.sees(t, watcher, watch.Modified, name, "")
	// An update of the status changes that alone, and another's spec not at all.
	// the server's own controllers write some of them too
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		wish, err := o.client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		generation := wish.GetGeneration()
		set(wish, map[string]any{}, "spec")
		after, err := o.client.UpdateStatus(ctx, wish, metav1.UpdateOptions{})
		if err == nil && (fmt.Sprint(after.Object["spec"]) != fmt.Sprint(before.Object["spec"]) ||
			after.GetGeneration() != generation) {
			t.Errorf("an update of the status made generation %d of %d, and a spec of %v", after.GetGeneration(),
				generation, after.Object["spec"])
		}
		return err
	})
	if err != nil {
		t.Errorf("update of the status: %v", err)
	}
}

// covers reports whether got has all that want has.
func covers(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		return ok && !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(k string) bool {
			return !covers(g[k], want[k])
		})
	case []any:
		g, ok := got.([]any)
		return ok && !slices.ContainsFunc(want, func(one any) bool {
			return !slices.ContainsFunc(g, func(have any) bool { return covers(have, one) })
		})
	}
	return fmt.Sprint(got) == fmt.Sprint(want)
}

// deletes removes one object by its name and the others by their label.
func (o operations) deletes(t *testing.T, watcher watch.Interface, mine metav1.ListOptions, name string) {
	t.Helper()
	ctx := t.Context()
	now := metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)),
		PropagationPolicy:  new(metav1.DeletePropagationBackground),
	}
	if err := o.client.Delete(ctx, name, now); err != nil {
		t.Fatalf("delete: %v", err)
	}
	o.release(t, name)
	o.sees(t, watcher, watch.Deleted, name, "")
	if _, err := o.client.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
	if err := o.client.Delete(ctx, name, now); !apierrors.IsNotFound(err) {
		t.Errorf("delete after delete: %v", err)
	}
	o.lists(t, mine, 2)
	if slices.Contains(o.verbs, "deletecollection") {
		if err := o.client.DeleteCollection(ctx, now, mine); err != nil {
			t.Fatalf("delete of the collection: %v", err)
		}
	} else {
		for i := 2; i <= 3; i++ {
			if err := o.client.Delete(ctx, o.minimal(t, i).GetName(), now); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := 2; i <= 3; i++ {
		o.release(t, o.minimal(t, i).GetName())
	}
	o.sees(t, watcher, watch.Deleted, "", "")
	o.sees(t, watcher, watch.Deleted, "", "")
	o.lists(t, mine, 0)
}

// release takes the finalizer of a namespace that is to go; the controller that does it in a cluster is not here.
func (o operations) release(t *testing.T, name string) {
	t.Helper()
	if o.gvr.Resource != "namespaces" {
		return
	}
	ns, err := o.client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || ns.GetDeletionTimestamp() == nil {
		t.Fatalf("a namespace that is to go: %v, %v", err, ns)
	}
	set(ns, []any{}, "spec", "finalizers")
	if _, err := o.client.Update(t.Context(), ns, metav1.UpdateOptions{}, "finalize"); err != nil {
		t.Fatalf("finalize: %v", err)
	}
}

// sees waits for an event about name ("": any object) with an annotation ("": any).
func (o operations) sees(t *testing.T, w watch.Interface, want watch.EventType, name, annotation string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case ev, ok := <-w.ResultChan():
			if !ok {
				t.Fatalf("watch ended, want %s %s", want, name)
			}
			obj, ok := ev.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("watch says %s %v, want %s %s", ev.Type, ev.Object, want, name)
			}
			if ev.Type == want && (name == "" || obj.GetName() == name) &&
				(annotation == "" || obj.GetAnnotations()[annotation] == "true") {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no event, want %s %s", want, name)
		}
	}
}

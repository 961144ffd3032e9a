// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/servertest"
	"keelson/event"
)

// TestDryRun makes every kind of write without effect.
func TestDryRun(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	c := running.Clients(t)
	maps := c.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, servertest.ConfigMap("here"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AppsV1().Deployments("default").Create(ctx, deployment("web"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := everything(t, running)
	const base = "/api/v1/namespaces/default/configmaps"
	const cm = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"a":"b"}}`
	for _, w := range []struct {
		method, path, body, media string
		code                      int
		text                      string
	}{
		{"POST", base + "?dryRun=All", fmt.Sprintf(cm, "new"), "application/json", 201, `"uid":"`},
		{"POST", base + "?dryRun=All", fmt.Sprintf(cm, "here"), "application/json", 409, "already exists"},
		{
			"POST", base + "?dryRun=Some", fmt.Sprintf(cm, "new"), "application/json", 422,
			`CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"`,
		},
		{"PUT", base + "/here?dryRun=All", fmt.Sprintf(cm, "here"), "application/json", 200, `"a":"b"`},
		{"PATCH", base + "/here?dryRun=All", `{"data":{"a":"b"}}`, servertest.MergePatch, 200, `"a":"b"`},
		{"PATCH", base + "/applied?dryRun=All&fieldManager=x", fmt.Sprintf(cm, "applied"), servertest.ApplyPatch, 201, `"a":"b"`},
		{
			"PATCH", "/apis/apps/v1/namespaces/default/deployments/web/scale?dryRun=All", `{"spec":{"replicas":7}}`,
			servertest.MergePatch, 200, `"replicas":7`,
		},
		{
			"PATCH", "/apis/apps/v1/namespaces/default/deployments/web/status?dryRun=All", `{"status":{"replicas":7}}`,
			servertest.MergePatch, 200, `"replicas":7`,
		},
		{"DELETE", base + "/here?dryRun=All", "", "", 200, `"status":"Success"`},
		{
			"DELETE", base + "/here", `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}`,
			"application/json", 200, `"status":"Success"`,
		},
		{"DELETE", base + "/none?dryRun=All", "", "", 404, "not found"},
		{"DELETE", base + "?dryRun=All", "", "", 200, `"name":"here"`},
		{
			"POST", "/api/v1/namespaces/default/services/kubernetes/proxy/x?dryRun=All", "", "", 400,
			"dryRun is not supported",
		},
		{
			"POST", "/api/v1/namespaces/default/pods/none/exec?command=rm&dryRun=All", "", "", 400,
			"dryRun is not supported",
		},
		{
			"DELETE", base + "/here?dryRun=None", "", "", 422,
			`DeleteOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value`,
		},
	} {
		running.Call(t, w.method, w.path, w.body, "Content-Type", w.media).Wants(t, w.method+" "+w.path, w.code, w.text)
	}
	if after := everything(t, running); !slices.Equal(before, after) {
		t.Errorf("dry runs changed something:\nbefore %v\nafter  %v", before, after)
	}
}

// everything names the config maps and deployments with their versions.
func everything(t *testing.T, r *servertest.Running) []string {
	t.Helper()
	c := r.Clients(t)
	maps, err := c.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deployments, err := c.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range maps.Items {
		out = append(out, m.Name+" "+m.ResourceVersion)
	}
	for _, d := range deployments.Items {
		out = append(out, d.Name+" "+d.ResourceVersion)
	}
	return out
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	one := int32(1)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "main", Image: "nginx"}},
				},
			},
		},
	}
}

// TestDeletes is about preconditions, finalizers, propagation and grace.
func TestDeletes(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	c := running.Clients(t)
	maps := c.CoreV1().ConfigMaps("default")
	fresh := func(name string, finalizers ...string) *corev1.ConfigMap {
		t.Helper()
		m, err := maps.Create(ctx, servertest.ConfigMap(name, finalizers...), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	t.Run("preconditions", func(t *testing.T) {
		m := fresh("pre")
		wrong := types.UID("wrong")
		err := maps.Delete(ctx, "pre", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
		want := fmt.Sprintf(
			`Operation cannot be fulfilled on ConfigMap "pre": the UID in the precondition (wrong) does not match the UID in record (%s). The object might have been deleted and then recreated`,
			m.UID)
		if !apierrors.IsConflict(err) || err.Error() != want {
			t.Errorf("wrong uid: %v, want %s", err, want)
		}
		one := "1"
		err = maps.Delete(ctx, "pre", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &one}})
		want = fmt.Sprintf(
			`Operation cannot be fulfilled on ConfigMap "pre": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (%s). The object might have been modified`,
			m.ResourceVersion)
		if !apierrors.IsConflict(err) || err.Error() != want {
			t.Errorf("wrong version: %v, want %s", err, want)
		}
		if err := maps.Delete(ctx, "pre",
			metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion},
			}); err != nil {
			t.Errorf("right preconditions: %v", err)
		}
	})
	t.Run("status", func(t *testing.T) {
		m := fresh("gone")
		var s metav1.Status
		running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/gone", "").Into(t, &s)
		if s.Kind != "Status" || s.Status != "Success" || s.Details == nil || s.Details.Name != "gone" ||
			s.Details.Kind != "configmaps" || s.Details.UID != m.UID {
			t.Errorf("answer to a delete: %+v", s)
		}
	})
	t.Run("finalizers", func(t *testing.T) {
		fresh("held", "example.com/a")
		var m corev1.ConfigMap
		running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/held", "").Into(t, &m)
		if m.DeletionTimestamp == nil || m.DeletionGracePeriodSeconds == nil || *m.DeletionGracePeriodSeconds != 0 {
			t.Fatalf("held object after delete: %+v", m.ObjectMeta)
		}
		if again := running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/held", ""); again.Code != 200 {
			t.Errorf("second delete: %d", again.Code)
		}
		running.Call(t, "POST", "/api/v1/namespaces/default/configmaps",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"held"}}`).
			Wants(t, "create over it", 409, `object is being deleted: configmaps "held" already exists`)
		running.Call(t, "PATCH", "/api/v1/namespaces/default/configmaps/held",
			`{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`, "Content-Type", servertest.MergePatch).
			Wants(t, "a new finalizer", 422,
				`metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"example.com/b"}`)
		running.Call(t, "PATCH", "/api/v1/namespaces/default/configmaps/held", `{"metadata":{"finalizers":null}}`,
			"Content-Type", servertest.MergePatch).Wants(t, "the last finalizer", 200, `"deletionTimestamp"`)
		running.Call(t, "GET", "/api/v1/namespaces/default/configmaps/held", "").Wants(t, "after it", 404, "not found")
	})
	for policy, finalizer := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents,
		metav1.DeletePropagationOrphan:     metav1.FinalizerOrphanDependents,
	} {
		t.Run(string(policy), func(t *testing.T) {
			name := strings.ToLower(string(policy))
			fresh(name)
			var m corev1.ConfigMap
			got := running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/"+name+"?propagationPolicy="+string(
				policy), "")
			got.Into(t, &m)
			if got.Code != 200 || !slices.Equal(m.Finalizers, []string{finalizer}) || m.DeletionTimestamp == nil {
				t.Errorf("%d with %+v", got.Code, m.ObjectMeta)
			}
		})
	}
	running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/x?propagationPolicy=Sideways", "").
		Wants(t, "no such policy", 422,
			`propagationPolicy: Unsupported value: "Sideways": supported values: "Foreground", "Background", "Orphan", "nil"`)
	running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/x?propagationPolicy=Orphan&orphanDependents=true",
		"").
		Wants(t, "both", 422, `orphanDependents and deletionPropagation cannot be both set`)
	running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/x", `{"kind":"Pod","apiVersion":"v1"}`).Wants(t,
		"a body of another kind", 400, "")
	running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps/x", `{"kind":`).Wants(t, "a broken body", 400, "")
}

// TestDeleteCollection deletes what selectors choose.
func TestDeleteCollection(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	for i := range 20 {
		m := servertest.ConfigMap(fmt.Sprintf("m%02d", i))
		m.Labels = map[string]string{"odd": fmt.Sprint(i%2 == 1)}
		if i == 1 {
			m.Finalizers = []string{"example.com/a"}
		}
		if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "odd=true"}); err != nil {
		t.Fatal(err)
	}
	left, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) != 11 {
		t.Fatalf("%d left, %v; want the ten even ones and the held one", len(left.Items), err)
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "metadata.name=m02"}); err != nil {
		t.Fatal(err)
	}
	got := running.Call(t, "DELETE", "/api/v1/namespaces/default/configmaps?limit=4", "")
	var list corev1.ConfigMapList
	got.Into(t, &list)
	if got.Code != 200 || list.Kind != "ConfigMapList" || len(list.Items) != 4 {
		t.Errorf("a page: %d, %s of %d", got.Code, list.Kind, len(list.Items))
	}
	running.Call(t, "DELETE", "/api/v1/configmaps", "").Wants(t, "of all namespaces", 405,
		"the server does not allow this method on the requested resource")
	running.Call(t, "DELETE", "/api/v1/namespaces", "").Wants(t, "of namespaces", 405,
		"the server does not allow this method on the requested resource")
}

// TestNames is about names, uids and what else the server gives an object.
func TestNames(t *testing.T) {
	running := servertest.Start(t, nil)
	const base = "/api/v1/namespaces/default/configmaps"
	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	made := running.Call(t, "POST", base,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"gen-","uid":"mine","creationTimestamp":"2001-01-01T00:00:00Z",`+
			`"deletionTimestamp":"2001-01-01T00:00:00Z","deletionGracePeriodSeconds":5,"selfLink":"/x","generation":7}}`)
	var configMap corev1.ConfigMap
	made.Into(t, &configMap)
	if made.Code != 201 || !regexp.MustCompile(`^gen-[bcdfghjklmnpqrstvwxz2456789]{5}$`).MatchString(configMap.Name) {
		t.Errorf("generated name: %d %q", made.Code, configMap.Name)
	}
	if configMap.UID == "mine" || configMap.UID == "" || configMap.CreationTimestamp.Year() == 2001 ||
		configMap.DeletionTimestamp != nil ||
		configMap.DeletionGracePeriodSeconds != nil || configMap.SelfLink != "" {
		t.Errorf("system metadata of a new object: %+v", configMap.ObjectMeta)
	}
	long := running.Call(t, "POST", base, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"`+
		strings.Repeat(
			"a", 70)+`"}}`)
	long.Into(t, &configMap)
	if len(configMap.Name) != 63 {
		t.Errorf("name generated from a long base has %d characters: %s", len(configMap.Name), configMap.Name)
	}
	for _, c := range []struct {
		what, method, path, body string
		code                     int
		text                     string
	}{
		{
			"no name", "POST", base, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}`, 422,
			`ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required`,
		},
		{
			"a bad name", "POST", base, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"A_b"}}`, 422,
			`metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of`,
		},
		{
			"another namespace", "POST", base,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"b"}}`, 400,
			"the namespace of the provided object does not match the namespace sent on the request",
		},
		{
			"a version on create", "POST", base,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"5"}}`, 500,
			"resourceVersion should not be set on objects to be created",
		},
		{
			"version 0 on create", "POST", base,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a0","resourceVersion":"0"}}`, 201, `"name":"a0"`,
		},
		{
			"no number for a version on create", "POST", base,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ax","resourceVersion":"x"}}`, 201, `"name":"ax"`,
		},
		{
			"both names, free", "POST", base,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-0","generateName":"web-"}}`, 201,
			`"name":"web-0"`,
		},
		{
			"both names, taken", "POST", base,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-0","generateName":"web-"}}`, 409,
			`configmaps "web-0" already exists, the server was not able to generate a unique name for the object`,
		},
		{
			"update of nothing", "PUT", base + "/none",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"none"}}`, 404, `configmaps "none" not found`,
		},
		{
			"update without a name", "PUT", base + "/web-0", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}`,
			400, "the name of the object (web-0 based on URL) was undeterminable: name must be provided",
		},
		{
			"update under another name", "PUT", base + "/web-0",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-1"}}`, 400,
			"the name of the object (web-1) does not match the name on the URL (web-0)",
		},
		{
			"update with another uid", "PUT", base + "/web-0",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-0","uid":"no"}}`, 409,
			"StorageError: invalid object, Code: 4, Key: /registry/configmaps/default/web-0, ResourceVersion: 0, " +
				"AdditionalErrorMsg: Precondition failed: UID in precondition: no, UID in object meta: ",
		},
		{
			"update with version 0", "PUT", base + "/web-0",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-0","resourceVersion":"0"},"data":{"a":"b"}}`,
			200, `"a":"b"`,
		},
		{
			"update with no number for a version", "PUT", base + "/web-0",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-0","resourceVersion":"x"}}`, 500,
			`strconv.ParseUint: parsing "x": invalid syntax`,
		},
		{
			"create by update, uid", "PUT", leases + "/a",
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","uid":"no"}}`, 409,
			"Key: /registry/leases/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in " +
				"precondition: no, UID in object meta: ",
		},
		{
			"create by update, no number for a version", "PUT", leases + "/a",
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","resourceVersion":"x"}}`,
			500, `strconv.ParseUint: parsing "x": invalid syntax`,
		},
		{
			"create by update, version", "PUT", leases + "/a",
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","resourceVersion":"5"}}`,
			201, `"name":"a"`,
		},
		{
			"update of another namespace's", "PUT", base + "/web-0",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-0","namespace":"b"}}`, 400,
			"the namespace of the provided object does not match the namespace sent on the request",
		},
		{
			"creation time on update is kept", "PUT", base + "/web-0",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-0","creationTimestamp":"2001-01-01T00:00:00Z"}}`,
			200, `"name":"web-0"`,
		},
		{
			"another kind", "POST", base, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`, 400,
			`Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion`,
		},
		{
			"another version", "POST", base, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"}}`,
			400, "the API version in the data (apps/v1) does not match the expected API version (v1)",
		},
		{
			"cluster-scoped kind with a namespace", "POST", "/api/v1/namespaces",
			`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns1","namespace":"x"}}`, 201, `"name":"ns1"`,
		},
	} {
		got := running.Call(t, c.method, c.path, c.body)
		got.Wants(t, c.what, c.code, c.text)
		if strings.Contains(string(got.Body), "2001-01-01") {
			t.Errorf("%s: the client's creation time was kept: %s", c.what, got.Body)
		}
	}
}

// TestDeletedAtOnce: the answer to a delete without a grace period says that it had none.
func TestDeletedAtOnce(t *testing.T) {
	running := servertest.Start(t, nil)
	pods := running.Clients(t).CoreV1().Pods("default")
	for _, dry := range []bool{true, false} {
		if dry {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p"},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: "i"}},
				},
			}
			if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		path := "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0"
		if dry {
			path += "&dryRun=All"
		}
		got := running.Call(t, "DELETE", path, "")
		for _, text := range []string{`"deletionGracePeriodSeconds":0`, `"deletionTimestamp":"2`, `"generation":2`} {
			got.Wants(t, path, 200, text)
		}
	}
	if _, err := pods.Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod: %v", err)
	}
}

// TestUnread: GET and lists report an object that cannot be read, and a delete of it unread removes it, unless dry run.
func TestUnread(t *testing.T) {
	st, ca := servertest.NewSite(t)
	running, stop := servertest.StartOn(t, st, ca, nil)
	t.Cleanup(stop)
	if _, err := st.Create(t.Context(), "/registry/configmaps/default/bad", []byte("junk")); err != nil {
		t.Fatal(err)
	}
	const base = "/api/v1/namespaces/default/configmaps"
	const unsafe = `{"kind":"DeleteOptions","apiVersion":"v1","ignoreStoreReadErrorWithClusterBreakingPotential":true%s}`
	for _, c := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{
			"GET", base, "", 500, "failed to read one or more configmaps from the storage: StorageError: corrupt " +
				"object, Code: 7, Key: /registry/configmaps/default/bad,",
		},
		{"GET", base + "?resourceVersion=0", "", 200, `"items":[`},
		{"GET", "/api/v1/namespaces/kube-system/configmaps", "", 200, `"items":[`},
		{"GET", base + "/bad", "", 500, "Internal error occurred: StorageError: corrupt object, Code: 7"},
		{"DELETE", base + "/bad", "", 500, "Internal error occurred"},
		{"DELETE", base + "/bad", fmt.Sprintf(unsafe, `,"dryRun":["All"]`), 200, `"status":"Success"`},
		{"DELETE", base + "/none", fmt.Sprintf(unsafe, ""), 404, "not found"},
		{"DELETE", base + "/bad", fmt.Sprintf(unsafe, ""), 200, `"details":{"name":"bad"`},
		{"GET", base, "", 200, `"items":[`},
		{
			"DELETE", "/api/v1/namespaces/kube-system", fmt.Sprintf(unsafe, ""), 409,
			"unsafe deletion is not allowed because the object is decodable from storage",
		},
	} {
		running.Call(t, c.method, c.path, c.body, "Content-Type", "application/json").Wants(t,
			c.method+" "+c.path+" "+c.body, c.code, c.text)
	}
}

// TestCollectionsHaveMarks: the deletion of a collection leaves a mark for each object, as a deletion by name does.
func TestCollectionsHaveMarks(t *testing.T) {
	running := servertest.Start(t, nil)
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	for _, m := range []*corev1.ConfigMap{servertest.ConfigMap("a"), servertest.ConfigMap("b", "example.com/hold")} {
		if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const path = "/api/v1/namespaces/default/configmaps"
	deleted := func(query string) (out []string) {
		t.Helper()
		running.Marks()
		running.Call(t, "DELETE", path+query, "", "Audit-Id", "all").Wants(t, "delete "+query, 200, "")
		for _, m := range running.Marks() {
			d, ok := m.Detail.(*event.Request)
			if ok && d.AuditID == "all" && m.Subject.Name != "" && m.Subject.UID != "" && d.Verb == "DELETE" &&
				d.User == "admin" && d.Code == 200 && d.Revision > 0 {
				out = append(out, m.Subject.Resource+"/"+m.Subject.Name)
			}
		}
		return out
	}
	if got := deleted("?dryRun=All"); got != nil {
		t.Errorf("a dry run: marks of %q", got)
	}
	if got, want := deleted(""), []string{"configmaps/a", "configmaps/b"}; !slices.Equal(got, want) {
		t.Errorf("got marks of %q, want %q", got, want)
	}
	if got := deleted(""); got != nil {
		t.Errorf("deleted again: marks of %q", got)
	}
}

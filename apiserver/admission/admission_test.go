// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"keelson/auth"
	"keelson/auth/authz"
)

// cache is a Reader over a map.
type cache map[string]runtime.Object

func cacheOf(objs map[schema.GroupVersionResource][]runtime.Object) cache {
	c := cache{}
	for gvr, list := range objs {
		for _, o := range list {
			m := o.(metav1.Object)
			c[gvr.Resource+"/"+m.GetNamespace()+"/"+m.GetName()] = o
		}
	}
	return c
}

func (c cache) Get(_ context.Context, gvr schema.GroupVersionResource, ns, name string) (runtime.Object, error) {
	if o, ok := c[gvr.Resource+"/"+ns+"/"+name]; ok {
		return o, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (c cache) List(_ context.Context, gvr schema.GroupVersionResource, ns string) ([]runtime.Object, error) {
	var out []runtime.Object
	for k, o := range c {
		if strings.HasPrefix(k, gvr.Resource+"/"+ns) {
			out = append(out, o)
		}
	}
	return out, nil
}

func pod(containers ...corev1.Container) *corev1.Pod {
	if len(containers) == 0 {
		containers = []corev1.Container{{Name: "main"}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p"},
		Spec: corev1.PodSpec{
			Containers: containers,
		},
	}
}

func creation(p *corev1.Pod) *Request {
	return &Request{
		Operation: Create,
		Resource:  pods,
		Namespace: p.Namespace,
		Name:      p.Name,
		Object:    p,
		User:      &auth.User{Name: "ann"},
		Warn:      func(string) {},
	}
}

func wantForbidden(t *testing.T, what string, err error, text string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want 403 with %q", what, err, text)
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	now := metav1.Now()
	lifecycle := NamespaceLifecycle{cacheOf(map[schema.GroupVersionResource][]runtime.Object{namespaces: {
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dying", DeletionTimestamp: &now}},
	}})}
	in := func(ns string, op Operation) error {
		r := creation(pod())
		r.Namespace = ns
		r.Operation = op
		return lifecycle.Admit(t.Context(), r)
	}
	if err := in("dev", Create); err != nil {
		t.Errorf("create in dev: %v", err)
	}
	if err := in("nowhere", Create); !apierrors.IsNotFound(err) {
		t.Errorf("create in a namespace that is not there: got %v, want 404", err)
	}
	err := in("dying", Create)
	wantForbidden(t, "create in a dying namespace", err,
		"unable to create new content in namespace dying because it is being terminated")
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("no NamespaceTerminating cause in %v", err)
	}
	if err := in("dying", Update); err != nil {
		t.Errorf("update in a dying namespace: %v", err)
	}
	if err := in("nowhere", Update); err != nil {
		t.Errorf("update of what is left of a namespace that is gone: %v", err)
	}
	del := &Request{Operation: Delete, Resource: namespaces, Name: "kube-system"}
	wantForbidden(t, "delete kube-system", lifecycle.Admit(t.Context(), del), "this namespace may not be deleted")
}

func TestServiceAccountMountsToken(t *testing.T) {
	serviceAccount := ServiceAccount{Reader: cacheOf(map[schema.GroupVersionResource][]runtime.Object{serviceAccounts: {
		&corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "dev",
				Name:      "default",
			},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "regcred"}},
		},
	}})}
	obj := pod(corev1.Container{Name: "a"}, corev1.Container{
		Name:         "own",
		VolumeMounts: []corev1.VolumeMount{{Name: "x", MountPath: tokenMountPath}},
	})
	req := creation(obj)
	if err := serviceAccount.Admit(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if obj.Spec.ServiceAccountName != "default" || obj.Spec.DeprecatedServiceAccount != "default" {
		t.Errorf("account: got %q and %q", obj.Spec.ServiceAccountName, obj.Spec.DeprecatedServiceAccount)
	}
	if len(obj.Spec.ImagePullSecrets) != 1 || obj.Spec.ImagePullSecrets[0].Name != "regcred" {
		t.Errorf("pull secrets: got %v", obj.Spec.ImagePullSecrets)
	}
	if len(obj.Spec.Volumes) != 1 || len(obj.Spec.Volumes[0].Projected.Sources) != 3 {
		t.Fatalf("volumes: got %+v", obj.Spec.Volumes)
	}
	if m := obj.Spec.Containers[0].VolumeMounts; len(m) != 1 || m[0].Name != obj.Spec.Volumes[0].Name ||
		m[0].MountPath != tokenMountPath {
		t.Errorf("mounts of a: got %+v", m)
	}
	if m := obj.Spec.Containers[1].VolumeMounts; len(m) != 1 {
		t.Errorf("mounts of the container with its own: got %+v", m)
	}
	if err := serviceAccount.Validate(t.Context(), req); err != nil {
		t.Errorf("Validate: %v", err)
	}
	out := pod()
	no := false
	out.Spec.AutomountServiceAccountToken = &no
	if err := serviceAccount.Admit(t.Context(), creation(out)); err != nil || len(out.Spec.Volumes) != 0 {
		t.Errorf("opted out: got volumes %v, %v", out.Spec.Volumes, err)
	}
	gone := pod()
	gone.Spec.ServiceAccountName = "gone"
	wantForbidden(t, "account that is not there", serviceAccount.Admit(t.Context(), creation(gone)),
		`error looking up service account dev/gone: serviceaccount "gone" not found`)
}

func TestServiceAccountWaitsForTheDefaultOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache{}
		begin := time.Now()
		err := ServiceAccount{Reader: c}.Admit(t.Context(), creation(pod()))
		wantForbidden(t, "no default account", err, "error looking up service account dev/default")
		if took := time.Since(begin); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("gave up after %s, want about five seconds", took)
		}
	})
}

func TestPriority(t *testing.T) {
	never := corev1.PreemptNever
	priority := Priority{cacheOf(map[schema.GroupVersionResource][]runtime.Object{priorityClasses: {
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000, PreemptionPolicy: &never},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "usual"}, Value: 5, GlobalDefault: true},
	}})}
	high := pod()
	high.Spec.PriorityClassName = "high"
	if err := priority.Admit(t.Context(), creation(high)); err != nil || *high.Spec.Priority != 1000 ||
		*high.Spec.PreemptionPolicy != never {
		t.Errorf("high: got %v %v, %v", high.Spec.Priority, high.Spec.PreemptionPolicy, err)
	}
	plain := pod()
	if err := priority.Admit(t.Context(), creation(plain)); err != nil || *plain.Spec.Priority != 5 ||
		plain.Spec.PriorityClassName != "usual" {
		t.Errorf("default class: got %v %q, %v", plain.Spec.Priority, plain.Spec.PriorityClassName, err)
	}
	gone := pod()
	gone.Spec.PriorityClassName = "gone"
	wantForbidden(t, "unknown class", priority.Admit(t.Context(), creation(gone)),
		"no PriorityClass with name gone was found")
	own := pod()
	seven := int32(7)
	own.Spec.Priority = &seven
	wantForbidden(t, "own priority", priority.Admit(t.Context(), creation(own)),
		"the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 5")
	second := &Request{
		Operation: Create,
		Resource:  priorityClasses,
		Name:      "second",
		Object:    &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "second"}, GlobalDefault: true},
	}
	wantForbidden(t, "second default", priority.Validate(t.Context(), second),
		"PriorityClass usual is already marked as default")
}

func TestTolerationsAndTaints(t *testing.T) {
	obj := pod()
	obj.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}}
	for range 2 { // twice changes nothing more
		if err := (DefaultTolerationSeconds{}).Admit(t.Context(), creation(obj)); err != nil {
			t.Fatal(err)
		}
	}
	if len(obj.Spec.Tolerations) != 2 || obj.Spec.Tolerations[1].Key != corev1.TaintNodeUnreachable ||
		*obj.Spec.Tolerations[1].TolerationSeconds != 300 {
		t.Errorf("tolerations: got %+v", obj.Spec.Tolerations)
	}
	node := &corev1.Node{}
	r := &Request{Operation: Create, Object: node}
	for range 2 {
		if err := (TaintNodesByCondition{}).Admit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("taints: got %+v", node.Spec.Taints)
	}
}

func quantities(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func TestLimitRanger(t *testing.T) {
	limitRanger := LimitRanger{
		cacheOf(map[schema.GroupVersionResource][]runtime.Object{limitRanges: {&corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "l"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type:           corev1.LimitTypeContainer,
				Default:        quantities("cpu", "500m"),
				DefaultRequest: quantities("cpu", "100m", "memory", "64Mi"),
				Max:            quantities("cpu", "1"),
				Min:            quantities("memory", "32Mi"),
			}}},
		}}}),
	}
	obj := pod()
	if err := limitRanger.Admit(t.Context(), creation(obj)); err != nil {
		t.Fatal(err)
	}
	c := obj.Spec.Containers[0].Resources
	if c.Requests.Cpu().String() != "100m" || c.Requests.Memory().String() != "64Mi" ||
		c.Limits.Cpu().String() != "500m" {
		t.Errorf("defaults: got %+v", c)
	}
	want := "LimitRanger plugin set: cpu, memory request for container main; cpu limit for container main"
	if got := obj.Annotations["kubernetes.io/limit-ranger"]; got != want {
		t.Errorf("annotation: got %q, want %q", got, want)
	}
	if err := limitRanger.Validate(t.Context(), creation(obj)); err != nil {
		t.Errorf("within bounds: %v", err)
	}
	bad := pod(corev1.Container{
		Name: "main",
		Resources: corev1.ResourceRequirements{
			Requests: quantities("cpu", "1", "memory", "16Mi"),
			Limits:   quantities("cpu", "2"),
		},
	})
	wantForbidden(t, "outside", limitRanger.Validate(t.Context(), creation(bad)),
		"[minimum memory usage per Container is 32Mi, but request is 16Mi, maximum cpu usage per Container is 1, but "+
			"limit is 2]")
}

func TestNodeRestriction(t *testing.T) {
	mine := pod()
	other := pod()
	mine.Spec.NodeName = "node-1"
	mine.UID = types.UID("u1")
	mine.Spec.Volumes = []corev1.Volume{{
		Name: "token",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			},
		}},
	}}
	other.Name = "q"
	other.Spec.NodeName = "node-2"
	restriction := NodeRestriction{
		Reader:   cacheOf(map[schema.GroupVersionResource][]runtime.Object{pods: {mine, other}}),
		NodeName: authz.NodeName,
	}
	kubelet := &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}}
	run := func(r *Request) error {
		r.User = kubelet
		if r.Namespace == "" {
			r.Namespace = "dev"
		}
		return restriction.Validate(t.Context(), r)
	}
	status := func(pod *corev1.Pod) *Request {
		return &Request{
			Operation:   Update,
			Resource:    pods,
			Subresource: "status",
			Name:        pod.Name,
			Object:      pod,
			OldObject:   pod,
		}
	}
	if err := run(status(mine)); err != nil {
		t.Errorf("status of its pod: %v", err)
	}
	wantForbidden(t, "status of another's pod", run(status(other)),
		`node "node-1" can only update pods with spec.nodeName set to itself`)
	wantForbidden(t, "creating a pod", run(&Request{Operation: Create, Resource: pods, Object: mine}),
		"can only create mirror pods")
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	wantForbidden(t, "another node", run(&Request{
		Operation: Update,
		Resource:  nodes,
		Name:      "node-2",
		Object:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}},
	}),
		`node "node-1" is not allowed to modify node "node-2"`)
	token := func(uid types.UID) *Request {
		return &Request{
			Operation:   Create,
			Resource:    serviceAccounts,
			Subresource: "token",
			Name:        "default",
			Object: &authenticationv1.TokenRequest{
				Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
					APIVersion: "v1",
					Kind:       "Pod",
					Name:       "p",
					UID:        uid,
				}},
			},
		}
	}
	if err := run(token("u1")); err != nil {
		t.Errorf("token for its pod: %v", err)
	}
	wantForbidden(t, "token for a pod made again", run(token("old")), "does not match the UID in record")
	if err := restriction.Validate(t.Context(), &Request{
		Operation: Create,
		Resource:  pods,
		Object:    other,
		User:      &auth.User{Name: "ann"},
	}); err != nil {
		t.Errorf("a user who is no kubelet: %v", err)
	}
}

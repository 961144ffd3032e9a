// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"keelson/api/core/localvolume"
	"keelson/auth"
)

func rules() *RBAC {
	rbac := &RBAC{}
	rbac.Set(
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "view"},
			Rules: []rbacv1.PolicyRule{
				{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/log"}},
				{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz/*"}},
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "viewers"},
			RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{{Kind: "Group", Name: "viewers"}},
		},
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "one"},
			Rules: []rbacv1.PolicyRule{
				{
					Verbs:         []string{"*"},
					APIGroups:     []string{"apps"},
					Resources:     []string{"*/scale"},
					ResourceNames: []string{"web"},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "b"},
			RoleRef:    rbacv1.RoleRef{Kind: "Role", Name: "one"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "bot"}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "v"},
			RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: "ann"}},
		},
	)
	return rbac
}

func TestRBAC(t *testing.T) {
	rbac := rules()
	ann := &auth.User{Name: "ann"}
	viewer := &auth.User{Name: "x", Groups: []string{"viewers"}}
	bot := &auth.User{Name: "system:serviceaccount:dev:bot"}
	get := func(u *auth.User, ns, resource, sub string) *auth.Attributes {
		return &auth.Attributes{
			User:            u,
			Verb:            "get",
			Namespace:       ns,
			Resource:        resource,
			Subresource:     sub,
			Name:            "web",
			ResourceRequest: true,
		}
	}
	scale := func(ns, name string) *auth.Attributes {
		return &auth.Attributes{
			User:            bot,
			Verb:            "patch",
			Group:           "apps",
			Namespace:       ns,
			Resource:        "deployments",
			Subresource:     "scale",
			Name:            name,
			ResourceRequest: true,
		}
	}
	path := func(p string) *auth.Attributes { return &auth.Attributes{User: viewer, Verb: "get", Path: p} }
	for _, c := range []struct {
		name string
		at   *auth.Attributes
		want string
	}{
		{
			"group everywhere", get(viewer, "any", "pods", ""),
			`RBAC: allowed by ClusterRoleBinding "viewers" of ClusterRole "view" to Group "viewers"`,
		},
		{
			"subresource named", get(viewer, "any", "pods", "log"),
			`RBAC: allowed by ClusterRoleBinding "viewers" of ClusterRole "view" to Group "viewers"`,
		},
		{"subresource not named", get(viewer, "any", "pods", "exec"), ""},
		{"another resource", get(viewer, "any", "secrets", ""), ""},
		{
			"cluster role in a namespace", get(ann, "dev", "pods", ""),
			`RBAC: allowed by RoleBinding "v/dev" of ClusterRole "view" to User "ann"`,
		},
		{"cluster role in another namespace", get(ann, "prod", "pods", ""), ""},
		{
			"service account, any resource's scale", scale("dev", "web"),
			`RBAC: allowed by RoleBinding "b/dev" of Role "one" to ServiceAccount "bot/dev"`,
		},
		{"another name", scale("dev", "db"), ""},
		{"another namespace", scale("prod", "web"), ""},
		{
			"path below a pattern", path("/healthz/etcd"),
			`RBAC: allowed by ClusterRoleBinding "viewers" of ClusterRole "view" to Group "viewers"`,
		},
		{"another path", path("/metrics"), ""},
	} {
		d, err := rbac.Authorize(t.Context(), c.at)
		if err != nil || d.Reason != c.want || (d.Verdict == auth.Allow) != (c.want != "") {
			t.Errorf("%s: got %+v, %v, want %q", c.name, d, err, c.want)
		}
	}
	rbac.Remove(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "viewers"}})
	if d, _ := rbac.Authorize(t.Context(), get(viewer, "any", "pods", "")); d.Verdict == auth.Allow {
		t.Error("still allowed after the binding was removed")
	}
}

// things are objects by name.
type things map[string]runtime.Object

func (t things) Get(_ context.Context, _ schema.GroupVersionResource, _, name string) (runtime.Object, error) {
	if obj := t[name]; obj != nil {
		return obj, nil
	}
	return nil, errors.New("not found")
}

func TestNode(t *testing.T) {
	pods := []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "build",
			ResourceClaims:     []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("claim")}},
			Volumes: []corev1.Volume{
				{
					Name: "c",
					VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
						ClaimName: "data",
					}},
				},
				{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls"}}},
			},
			InitContainers: []corev1.Container{
				{
					EnvFrom: []corev1.EnvFromSource{
						{
							ConfigMapRef: &corev1.ConfigMapEnvSource{
								LocalObjectReference: corev1.LocalObjectReference{Name: "env"},
							},
						},
					},
				},
			},
		},
	}}
	n := Node{
		Pods: func(node string) []*corev1.Pod {
			if node == "node-1" {
				return pods
			}
			return nil
		},
		Objects: things{
			"data": &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{
				Namespace: "default",
				Name:      "data",
			}}},
			"free": &corev1.PersistentVolume{},
			"here": &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      map[string]string{localvolume.NodeLabel: "node-1"},
					Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": localvolume.Provisioner},
				},
				Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
					Local: &corev1.LocalVolumeSource{},
				}},
			},
			"va-1": &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: "node-1"}},
			"rs-1": &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{NodeName: new("node-1")}},
		},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"services"}},
		},
	}
	at := func(node, verb, resource, sub, name string) *auth.Attributes {
		group := ""
		switch resource {
		case "podcertificaterequests":
			group = "certificates.k8s.io"
		case "resourceclaims", "resourceslices":
			group = "resource.k8s.io"
		case "leases":
			group = "coordination.k8s.io"
		case "csinodes", "volumeattachments":
			group = "storage.k8s.io"
		}
		return &auth.Attributes{
			Group:           group,
			User:            &auth.User{Name: "system:node:" + node, Groups: []string{auth.Nodes}},
			Verb:            verb,
			Resource:        resource,
			Subresource:     sub,
			Namespace:       "default",
			Name:            name,
			ResourceRequest: true,
		}
	}
	mine := func(a *auth.Attributes) *auth.Attributes {
		a.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", "node-1").Requirements()
		return a
	}
	labelled := func(node string, a *auth.Attributes) *auth.Attributes {
		r, err := labels.NewRequirement(localvolume.NodeLabel, selection.Equals, []string{node})
		if err != nil {
			t.Fatal(err)
		}
		a.LabelSelector = labels.Requirements{*r}
		return a
	}
	for _, c := range []struct {
		name string
		at   *auth.Attributes
		want bool
	}{
		{"a secret its pod mounts", at("node-1", "get", "secrets", "", "tls"), true},
		{"watch of that secret", at("node-1", "watch", "secrets", "", "tls"), true},
		{"another secret", at("node-1", "get", "secrets", "", "root"), false},
		{"all secrets", at("node-1", "list", "secrets", "", ""), false},
		{"writing the secret", at("node-1", "update", "secrets", "", "tls"), false},
		{"the secret from another node", at("node-2", "get", "secrets", "", "tls"), false},
		{"a config map of an init container", at("node-1", "get", "configmaps", "", "env"), true},
		{"a token for its pod's account", at("node-1", "create", "serviceaccounts", "token", "build"), true},
		{"a token for another account", at("node-1", "create", "serviceaccounts", "token", "admin"), false},
		{"a request for a certificate", at("node-1", "create", "podcertificaterequests", "", ""), true},
		{"the requests of its pods", mine(at("node-1", "watch", "podcertificaterequests", "", "")), true},
		{"the requests of another's pods", mine(at("node-2", "list", "podcertificaterequests", "", "")), false},
		{"a request by name", at("node-1", "get", "podcertificaterequests", "", "r"), false},
		{"issuing a certificate", at("node-1", "update", "podcertificaterequests", "status", "r"), false},
		{"deleting a request", mine(at("node-1", "delete", "podcertificaterequests", "", "r")), false},
		{"its pod's devices", at("node-1", "get", "resourceclaims", "", "claim"), true},
		{"other devices", at("node-1", "get", "resourceclaims", "", "other"), false},
		{"the size of its pod's volume", at("node-1", "patch", "persistentvolumeclaims", "status", "data"), true},
		{"the size of another volume", at("node-1", "patch", "persistentvolumeclaims", "status", "other"), false},
		{"a lease elsewhere", at("node-1", "get", "leases", "", "node-1"), false},
		{"its CSINode", at("node-1", "update", "csinodes", "", "node-1"), true},
		{"another's CSINode", at("node-1", "update", "csinodes", "", "node-2"), false},
		{"its pod's volume", at("node-1", "get", "persistentvolumes", "", "data"), true},
		{"that volume from another node", at("node-2", "get", "persistentvolumes", "", "data"), false},
		{"a volume nobody claimed", at("node-1", "get", "persistentvolumes", "", "free"), false},
		{"no such volume", at("node-1", "get", "persistentvolumes", "", "gone"), false},
		{"all volumes", at("node-1", "list", "persistentvolumes", "", ""), false},
		{"the local volumes it keeps", labelled("node-1", at("node-1", "watch", "persistentvolumes", "", "")), true},
		{"those of another", labelled("node-2", at("node-1", "watch", "persistentvolumes", "", "")), false},
		{"letting go of one", at("node-1", "patch", "persistentvolumes", "", "here"), true},
		{"letting go of another's", at("node-2", "patch", "persistentvolumes", "", "here"), false},
		{"changing its pod's volume", at("node-1", "patch", "persistentvolumes", "", "data"), false},
		{"deleting its local volume", at("node-1", "delete", "persistentvolumes", "", "here"), false},
		{"the phase of its local volume", at("node-1", "patch", "persistentvolumes", "status", "here"), false},
		{"what is attached to it", at("node-1", "get", "volumeattachments", "", "va-1"), true},
		{"what is attached to another", at("node-2", "get", "volumeattachments", "", "va-1"), false},
		{"its slice of devices", at("node-1", "update", "resourceslices", "", "rs-1"), true},
		{"another's slice", at("node-2", "update", "resourceslices", "", "rs-1"), false},
		{"its slices", mine(at("node-1", "watch", "resourceslices", "", "")), true},
		{"a new slice", at("node-1", "create", "resourceslices", "", ""), true},
		{"all slices of devices", at("node-1", "list", "resourceslices", "", ""), false},
		{"what every node may", at("node-1", "list", "services", "", ""), true},
	} {
		d, err := n.Authorize(t.Context(), c.at)
		if err != nil || (d.Verdict == auth.Allow) != c.want {
			t.Errorf("%s: got %+v, %v, want allowed %v", c.name, d, err, c.want)
		}
	}
}

func BenchmarkAuthorize(b *testing.B) {
	a := rules()
	at := &auth.Attributes{
		User:            &auth.User{Name: "x", Groups: []string{"viewers", auth.Authenticated}},
		Verb:            "get",
		Namespace:       "any",
		Resource:        "pods",
		ResourceRequest: true,
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := a.Authorize(b.Context(), at); d.Verdict != auth.Allow {
			b.Fatal("denied")
		}
	}
}

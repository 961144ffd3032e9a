// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver/options"
	"keelson/cluster"
	"keelson/lib/waittest"
)

// TestAdmissionControllers: what admission leaves to controllers is done by them.
func TestAdmissionControllers(t *testing.T) {
	cfg := controlPlaneOf(t, func(*cluster.Config) {})
	c := kubernetes.NewForConfigOrDie(cfg)
	t.Run("parameters", func(t *testing.T) { policyParameters(t, c, cfg) })
	t.Run("storage", func(t *testing.T) { storageInUse(t, c) })
	t.Run("policies", func(t *testing.T) { policyTypes(t, c) })
}

func claimFor(name string, edit func(*corev1.PersistentVolumeClaimSpec)) *corev1.PersistentVolumeClaim {
	none := ""
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: hard("storage", "1Gi")},
		},
	}
	if edit != nil {
		edit(&claim.Spec)
	}
	return claim
}

// storageInUse: claims, volumes and attribute classes go when no one uses them, and not before.
func storageInUse(t *testing.T, c kubernetes.Interface) {
	limited := limit(t, c, "storage", corev1.ResourceQuotaSpec{Hard: hard("configmaps", "99")})
	ctx := t.Context()
	core := c.CoreV1()
	claims := core.PersistentVolumeClaims(limited.ns)
	classes := c.StorageV1().VolumeAttributesClasses()
	gone := func(what string, get func() error) {
		t.Helper()
		waittest.Right(t, "the end of "+what, func() string {
			if err := get(); !apierrors.IsNotFound(err) {
				return "it is there"
			}
			return ""
		})
	}
	getClaim := func(name string) func() error {
		return func() error {
			_, err := claims.Get(ctx, name, metav1.GetOptions{})
			return err
		}
	}
	for _, name := range []string{"used", "free"} {
		made, err := claims.Create(ctx, claimFor(name, nil), metav1.CreateOptions{})
		if err != nil || !slices.Contains(made.Finalizers, "kubernetes.io/pvc-protection") {
			t.Fatalf("new claim: %v, %v", made.Finalizers, err)
		}
	}
	// The pod's node is there, so that no one takes the pod for lost.
	_, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}},
		metav1.CreateOptions{})
	limited.must("node", err)
	limited.must("pod", limited.pod("user", func(s *corev1.PodSpec) {
		s.NodeName = "elsewhere"
		s.Volumes = []corev1.Volume{
			{
				Name: "v",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: "used",
				}},
			},
		}
	}))
	for _, name := range []string{"used", "free"} {
		limited.must("delete", claims.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	gone("a claim that no pod uses", getClaim("free")) // claims of a namespace are judged together
	if got, err := claims.Get(ctx, "used", metav1.GetOptions{}); err != nil || got.DeletionTimestamp == nil {
		t.Errorf("a claim in use: got %v, want it there, being deleted", err)
	}
	limited.deletePod("user")
	gone("a claim after its pod", getClaim("used"))

	volume := func(name string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:    hard("storage", "1Gi"),
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"},
				},
			},
		}
	}
	made, err := core.PersistentVolumes().Create(ctx, volume("bound"), metav1.CreateOptions{})
	if err != nil || !slices.Contains(made.Finalizers, "kubernetes.io/pv-protection") {
		t.Fatalf("new volume: %v, %v", made.Finalizers, err)
	}
	_, err = claims.Create(ctx, claimFor("binding", nil), metav1.CreateOptions{})
	limited.must("claim", err)
	waittest.Right(t, "a bound volume", func() string {
		if v, err := core.PersistentVolumes().Get(ctx, "bound", metav1.GetOptions{}); err != nil ||
			v.Status.Phase != corev1.VolumeBound {
			return fmt.Sprintf("%v, %v", v.Status, err)
		}
		return ""
	})
	limited.must("delete", core.PersistentVolumes().Delete(ctx, "bound", metav1.DeleteOptions{}))
	if got, err := core.PersistentVolumes().Get(ctx, "bound", metav1.GetOptions{}); err != nil ||
		got.DeletionTimestamp == nil {
		t.Errorf("a bound volume: got %v, want it there, being deleted", err)
	}
	limited.must("delete", claims.Delete(ctx, "binding", metav1.DeleteOptions{}))
	gone("a volume after its claim", func() error {
		_, err := core.PersistentVolumes().Get(ctx, "bound", metav1.GetOptions{})
		return err
	})

	gold := "gold"
	if _, err := classes.Create(ctx,
		&storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{
				Name: gold,
			},
			DriverName: "example.com/driver",
			Parameters: map[string]string{"a": "b"},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claims.Create(ctx, claimFor("golden", func(s *corev1.PersistentVolumeClaimSpec) {
		s.VolumeAttributesClassName = &gold
	}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	limited.must("delete", claims.Delete(ctx, "golden", metav1.DeleteOptions{}))
	limited.must("delete", classes.Delete(ctx, gold, metav1.DeleteOptions{}))
	gone("a class after its claim", func() error {
		_, err := classes.Get(ctx, gold, metav1.GetOptions{})
		return err
	})
}

// policyTypes: a policy's status warns of expressions that do not fit the types they are about.
func policyTypes(t *testing.T, c kubernetes.Interface) {
	policies := c.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	about := func(name string, validation registrationv1.Validation) *registrationv1.ValidatingAdmissionPolicy {
		return &registrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: registrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &registrationv1.MatchResources{
					ResourceRules: []registrationv1.NamedRuleWithOperations{
						{RuleWithOperations: registrationv1.RuleWithOperations{
							Operations: []registrationv1.OperationType{"CREATE"},
							Rule: registrationv1.Rule{
								APIGroups:   []string{"apps"},
								APIVersions: []string{"v1"},
								Resources:   []string{"deployments"},
							},
						}},
					},
				},
				Validations: []registrationv1.Validation{validation},
			},
		}
	}
	checked := func(name string, generation int64) []registrationv1.ExpressionWarning {
		t.Helper()
		var out []registrationv1.ExpressionWarning
		waittest.Right(t, "type checking of "+name, func() string {
			p, err := policies.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if p.Status.TypeChecking == nil || p.Status.ObservedGeneration < generation {
				return "it is not checked"
			}
			out = p.Status.TypeChecking.ExpressionWarnings
			return ""
		})
		return out
	}
	for _, p := range []*registrationv1.ValidatingAdmissionPolicy{
		about("right.example.com", registrationv1.Validation{Expression: "object.spec.replicas > 1"}),
		about("confused.example.com", registrationv1.Validation{
			Expression:        "object.spec.replicas > '1'",
			MessageExpression: "'wants replicas > 1, got ' + object.spec.replicas",
		}),
	} {
		if _, err := policies.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := checked("right.example.com", 1); len(got) != 0 {
		t.Errorf("right types: got %v", got)
	}
	got := checked("confused.example.com", 1)
	want := []registrationv1.ExpressionWarning{
		{
			FieldRef: "spec.validations[0].expression",
			Warning: "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied " +
				"to '(int, string)'",
		},
		{
			FieldRef: "spec.validations[0].messageExpression",
			Warning: "apps/v1, Kind=Deployment: ERROR: <input>:1:28: found no matching overload for '_+_' applied " +
				"to '(string, int)'",
		},
	}
	if len(got) != 2 || got[0].FieldRef != want[0].FieldRef || got[1].FieldRef != want[1].FieldRef ||
		!strings.HasPrefix(got[0].Warning, want[0].Warning) || !strings.HasPrefix(got[1].Warning, want[1].Warning) {
		t.Errorf("confused types: got %q, want %q", got, want)
	}
	_, err := policies.Patch(t.Context(), "confused.example.com", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/validations","value":[{"expression":"object.spec.replicas > 1"}]}]`),
		metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := checked("confused.example.com", 2); len(got) != 0 {
		t.Errorf("repaired types: got %v", got)
	}
}

// policyParameters: who may write policies may not read by way of them what they may not read themselves.
func policyParameters(t *testing.T, cs kubernetes.Interface, cfg *rest.Config) {
	ctx := t.Context()
	if _, err := cs.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "policies"},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"*"}, APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"*"}},
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"services"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "policies"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "policies"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "ann"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own := rest.CopyConfig(cfg)
	own.Impersonate = rest.ImpersonationConfig{UserName: "ann"}
	ann := kubernetes.NewForConfigOrDie(own)
	create := func(kind string) error {
		_, err := ann.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(
			ctx, &registrationv1.ValidatingAdmissionPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(kind)},
				Spec: registrationv1.ValidatingAdmissionPolicySpec{
					ParamKind:   &registrationv1.ParamKind{APIVersion: "v1", Kind: kind},
					Validations: []registrationv1.Validation{{Expression: "true"}},
					MatchConstraints: &registrationv1.MatchResources{
						ResourceRules: []registrationv1.NamedRuleWithOperations{
							{RuleWithOperations: registrationv1.RuleWithOperations{
								Operations: []registrationv1.OperationType{"CREATE"},
								Rule: registrationv1.Rule{
									APIGroups:   []string{""},
									APIVersions: []string{"v1"},
									Resources:   []string{"endpoints"},
								},
							}},
						},
					},
				},
			}, metav1.CreateOptions{})
		return err
	}
	waittest.Right(t, "a policy with parameters that its author may read", func() string {
		if err := create("Service"); err != nil {
			return err.Error()
		}
		return ""
	})
	if err := create("Secret"); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		`must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)`) {
		t.Errorf("a policy with secrets as parameters: got %v", err)
	}
}

// TestAdmissionOptions: what is wrong with them is said before anything starts.
func TestAdmissionOptions(t *testing.T) {
	for _, tt := range []struct {
		opts options.Options
		want string
	}{
		{
			options.Options{Admission: options.Admission{Enable: []string{"Nonsense"}}},
			`enable-admission-plugins plugin "Nonsense" is unknown`,
		},
		{
			options.Options{Admission: options.Admission{Enable: []string{"Priority"}, Disable: []string{"Priority"}}},
			"[Priority] in enable-admission-plugins and disable-admission-plugins overlapped",
		},
		{
			options.Options{
				Admission: options.Admission{
					Disable: []string{"PodNodeSelector", "Priority"},
					Enable:  []string{"AlwaysPullImages"},
				},
			}, "",
		},
	} {
		if err := tt.opts.Validate(); tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("%+v: got %v, want %s", tt.opts, err, tt.want)
		}
	}
}

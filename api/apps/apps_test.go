// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/gates"
	"keelson/api/kind/kindtest"
)

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
	}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func deployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "web",
		},
		Spec: appsv1.DeploymentSpec{Selector: selector(), Template: template()},
	}
}

func TestDeploymentDefaults(t *testing.T) {
	spec := Deployment(gates.On{})
	d := deployment()
	spec.Default(d)
	if *d.Spec.Replicas != 1 || *d.Spec.RevisionHistoryLimit != 10 || *d.Spec.ProgressDeadlineSeconds != 600 ||
		d.Spec.Strategy.RollingUpdate.MaxSurge.StrVal != "25%" ||
		d.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Errorf("defaults: got %+v", d.Spec)
	}
	again := d.DeepCopy()
	spec.Default(again)
	if diff := cmp.Diff(d, again); diff != "" {
		t.Errorf("defaulting twice changed (-once +twice):\n%s", diff)
	}
	if errs := spec.Validate(d); len(errs) > 0 {
		t.Errorf("defaulted deployment: %v", errs)
	}
}

func TestDeploymentErrors(t *testing.T) {
	spec := Deployment(gates.On{})
	zero := intstr.FromInt32(0)
	many := intstr.FromString("150%")
	for _, c := range []struct {
		name  string
		spoil func(*appsv1.Deployment)
		want  string
	}{
		{
			"no selector", func(d *appsv1.Deployment) {
				d.Spec.Selector = nil
				d.Spec.Template.Labels = nil
			},
			"spec.selector: Required value spec.template.metadata.labels: Invalid value: null: `selector` does not " +
				"match template `labels`",
		},
		{
			"empty selector", func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} },
			`spec.selector: Invalid value: {}: empty selector is invalid for deployment`,
		},
		{
			"labels do not match", func(d *appsv1.Deployment) { d.Spec.Template.Labels["app"] = "db" },
			"spec.template.metadata.labels: Invalid value: {\"app\":\"db\"}: `selector` does not match template " +
				"`labels`",
		},
		{
			"negative replicas", func(d *appsv1.Deployment) {
				n := int32(-1)
				d.Spec.Replicas = &n
			},
			"spec.replicas: Invalid value: -1: must be greater than or equal to 0",
		},
		{
			"never restarts", func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			},
			`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`,
		},
		{"no way to roll", func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &zero, MaxSurge: &zero}
		}, "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"},
		{"over 100 %", func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &many, MaxSurge: &zero}
		}, `spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "150%": must not be greater than 100%`},
		{"recreate with rolling", func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{
				Type:          "Recreate",
				RollingUpdate: &appsv1.RollingUpdateDeployment{},
			}
		}, "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"},
		{
			"image volume without a reference", func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.Volumes = []corev1.Volume{{
					Name:         "v",
					VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{PullPolicy: corev1.PullAlways}},
				}}
			},
			"spec.template.spec.volumes[0].image.reference: Required value",
		},
		{
			"deadline too short", func(d *appsv1.Deployment) {
				n := int32(5)
				d.Spec.ProgressDeadlineSeconds = &n
				d.Spec.MinReadySeconds = 5
			},
			"spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds",
		},
	} {
		d := deployment()
		c.spoil(d)
		spec.Default(d)
		errs := spec.Validate(d)
		var got []string
		for _, err := range errs {
			got = append(got, err.Error())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s:\ngot  %v\nwant [%s]", c.name, errs, c.want)
		}
	}
}

func TestSelectorIsImmutable(t *testing.T) {
	k := ReplicaSet(gates.On{})
	old := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector(), Template: template()}}
	k.Default(old)
	rs := old.DeepCopy()
	rs.Spec.Selector.MatchLabels["app"] = "db"
	rs.Spec.Template.Labels["app"] = "db"
	errs := k.ValidateUpdate(rs, old)
	if len(errs) != 1 || errs[0].Field != "spec.selector" || errs[0].Detail != "field is immutable" {
		t.Errorf("changed selector: got %v", errs)
	}
}

func TestGenerationAndStatus(t *testing.T) {
	spec := Deployment(gates.On{})
	old := deployment()
	spec.Default(old)
	old.Generation = 3
	old.Status.Replicas = 5
	same := old.DeepCopy()
	same.Status.Replicas = 0
	same.Labels = map[string]string{"a": "b"}
	spec.PrepareUpdate(same, old)
	if same.Generation != 3 || same.Status.Replicas != 5 {
		t.Errorf("labels changed: got generation %d, status.replicas %d, want 3 and 5", same.Generation,
			same.Status.Replicas)
	}
	scaled := old.DeepCopy()
	spec.Scale.Set(scaled, 9)
	spec.PrepareUpdate(scaled, old)
	if scaled.Generation != 4 {
		t.Errorf("spec changed: got generation %d, want 4", scaled.Generation)
	}
	status := old.DeepCopy()
	spec.Scale.Set(status, 9)
	status.Status.Replicas = 7
	spec.Subs["status"].PrepareUpdate(status, old)
	if n, _, _ := spec.Scale.Get(status); n != 1 || status.Status.Replicas != 7 {
		t.Errorf("status update: got spec.replicas %d, status.replicas %d, want 1 and 7", n, status.Status.Replicas)
	}
}

func TestRows(t *testing.T) {
	d := deployment()
	n := int32(3)
	d.Spec.Replicas = &n
	d.Status.ReadyReplicas = 2
	d.Status.UpdatedReplicas = 3
	d.Status.AvailableReplicas = 1
	want := []any{"web", "2/3", int64(3), int64(1), "<unknown>", "web", "nginx", "app=web"}
	if diff := cmp.Diff(want, Deployment(gates.On{}).Row(d)); diff != "" {
		t.Errorf("deployment row (-want +got):\n%s", diff)
	}
	rev := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: "r",
			OwnerReferences: []metav1.OwnerReference{
				{
					APIVersion: "apps/v1",
					Kind:       "StatefulSet",
					Name:       "db",
					Controller: new(true),
				},
			},
		},
		Revision: 4,
		Data:     runtime.RawExtension{Raw: []byte("{}")},
	}
	if diff := cmp.Diff([]any{"r", "statefulset.apps/db", int64(4), "<unknown>"},
		ControllerRevision().Row(rev)); diff != "" {
		t.Errorf("revision row (-want +got):\n%s", diff)
	}
}

// TestEveryErrorIsListed: one error does not hide another one.
func TestEveryErrorIsListed(t *testing.T) {
	path := field.NewPath("x")
	wrong := intstr.FromString("1x")
	zero := intstr.FromInt32(0)
	many := intstr.FromString("101%")
	const percent = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', " +
		"regex used for validation is '[0-9]+%')"
	kindtest.Same(t, "deployment", validateRolling(&appsv1.RollingUpdateDeployment{
		MaxUnavailable: &wrong,
		MaxSurge:       &zero,
	}, path), []string{
		`x.maxUnavailable: Invalid value: "1x": ` + percent,
		"x.maxUnavailable: Invalid value: \"1x\": may not be 0 when `maxSurge` is 0",
	})
	kindtest.Same(t, "deployment", validateRolling(&appsv1.RollingUpdateDeployment{
		MaxUnavailable: &many,
		MaxSurge:       &wrong,
	}, path), []string{
		`x.maxSurge: Invalid value: "1x": ` + percent,
		`x.maxUnavailable: Invalid value: "101%": must not be greater than 100%`,
	})
	revision := &appsv1.ControllerRevision{Revision: -1}
	for data, want := range map[string]string{
		"":         "data: Required value: data is mandatory",
		"null":     "data: Required value: data is mandatory",
		"[]":       "data: Required value: data must be a valid JSON object",
		`{"a": 1}`: "",
		"{":        `data: Invalid value: "<value omitted>": error parsing data: unexpected end of JSON input`,
	} {
		revision.Data.Raw = nil
		if data != "" {
			revision.Data.Raw = []byte(data)
		}
		list := []string{"revision: Invalid value: -1: must be greater than or equal to 0"}
		if want != "" {
			list = append(list, want)
		}
		kindtest.Same(t, data, ControllerRevision().Validate(revision), list)
	}
}

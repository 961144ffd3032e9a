// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/kind/kindtest"
)

func specOf(t *testing.T, text string) corev1.PodSpec {
	t.Helper()
	var s corev1.PodSpec
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDefaultVolumes(t *testing.T) {
	in := specOf(t, `
volumes:
- {name: a}
- {name: b, secret: {secretName: x}}
- {name: c, hostPath: {path: /x}}
- {name: d, projected: {sources: [{serviceAccountToken: {path: tk}}, {downwardAPI: {items: [{path: nm, fieldRef: {fieldPath: metadata.name}}]}}]}}
- {name: e, downwardAPI: {items: [{path: nm, fieldRef: {fieldPath: metadata.name}}]}}
- {name: f, image: {reference: "x:latest"}}
- {name: g, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce]}}}}
- {name: h, iscsi: {targetPortal: p, iqn: i, lun: 0}}
- {name: i, azureDisk: {diskName: d, diskURI: u}}`)
	want := specOf(t, `
volumes:
- {name: a, emptyDir: {}}
- {name: b, secret: {secretName: x, defaultMode: 420}}
- {name: c, hostPath: {path: /x, type: ""}}
- {name: d, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: tk, expirationSeconds: 3600}}, {downwardAPI: {items: [{path: nm, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}]}}
- {name: e, downwardAPI: {defaultMode: 420, items: [{path: nm, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}
- {name: f, image: {reference: "x:latest", pullPolicy: Always}}
- {name: g, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], volumeMode: Filesystem}}}}
- {name: h, iscsi: {targetPortal: p, iqn: i, lun: 0, iscsiInterface: default}}
- {name: i, azureDisk: {diskName: d, diskURI: u, cachingMode: ReadWrite, kind: Shared, fsType: ext4, readOnly: false}}`)
	podspec.Default(&in)
	if d := cmp.Diff(want.Volumes, in.Volumes); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDefaultsOfPodsNotTemplates(t *testing.T) {
	const text = `
hostNetwork: true
serviceAccount: old
terminationGracePeriodSeconds: -1
containers: [{name: a, image: x, ports: [{containerPort: 80}], resources: {limits: {cpu: 1234567n}}}]`
	template := corev1.PodTemplateSpec{Spec: specOf(t, text)}
	podspec.DefaultTemplate(&template)
	container := template.Spec.Containers[0]
	if container.Ports[0].HostPort != 0 || container.Resources.Requests != nil ||
		template.Spec.EnableServiceLinks != nil {
		t.Errorf("a template got a pod's defaults: %+v", template.Spec)
	}
	if got := container.Resources.Limits.Cpu().String(); got != "2m" {
		t.Errorf("cpu rounded to %s, want 2m", got)
	}
	if got := *template.Spec.TerminationGracePeriodSeconds; got != -1 {
		t.Errorf("a template got the grace period %d", got)
	}
	if template.Spec.ServiceAccountName != "old" {
		t.Errorf("service account %q, want old", template.Spec.ServiceAccountName)
	}
	p := &corev1.Pod{Spec: specOf(t, text)}
	setDefaults(p)
	if got := *p.Spec.TerminationGracePeriodSeconds; got != 1 {
		t.Errorf("a pod with a negative grace period got %d, want 1", got)
	}
	container = p.Spec.Containers[0]
	if container.Ports[0].HostPort != 80 || container.Resources.Requests.Cpu().String() != "2m" ||
		!*p.Spec.EnableServiceLinks {
		t.Errorf("a pod lacks a pod's defaults: %+v", p.Spec)
	}
}

func TestDefaultPodLevelResources(t *testing.T) {
	p := &corev1.Pod{Spec: specOf(t, `
resources: {limits: {cpu: "2", memory: 1Gi}}
containers: [{name: a, resources: {requests: {cpu: 500m}}}, {name: b, resources: {limits: {hugepages-2Mi: 4Mi}}}]`)}
	setDefaults(p)
	want := specOf(t,
		`resources: {limits: {cpu: "2", memory: 1Gi, hugepages-2Mi: 4Mi}, requests: {cpu: 500m, memory: 1Gi, hugepages-2Mi: 4Mi}}`)
	if d := cmp.Diff(want.Resources, p.Spec.Resources); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDisabledFieldsAreDropped(t *testing.T) {
	const text = `
schedulingGroup: {podGroupName: g}
volumes: [{name: v, secret: {secretName: s, defaultUser: 5}}]
containers: [{name: a, livenessProbe: {grpc: {port: 1, mode: TLS}}, volumeMounts: [{name: v, mountPath: /v, bindMountOptions: [noexec]}]}]`
	spec := specOf(t, text)
	old := specOf(t, `{schedulingGroup: {podGroupName: g}, containers: []}`)
	on := *spec.DeepCopy()
	if podspec.DropDisabled(&on, nil, gates.All()); on.SchedulingGroup == nil ||
		on.Containers[0].LivenessProbe.GRPC.Mode != nil {
		t.Errorf("with GenericWorkload on: group %v, mode %v; want the group alone", on.SchedulingGroup,
			on.Containers[0].LivenessProbe.GRPC.Mode)
	}
	podspec.DropDisabled(&spec, nil, gates.On{})
	want := specOf(t, `
volumes: [{name: v, secret: {secretName: s}}]
containers: [{name: a, livenessProbe: {grpc: {port: 1}}, volumeMounts: [{name: v, mountPath: /v}]}]`)
	if d := cmp.Diff(want, spec); d != "" {
		t.Errorf("create (-want +got):\n%s", d)
	}
	spec = specOf(t, text)
	if podspec.DropDisabled(&spec, &old, gates.On{}); spec.SchedulingGroup == nil ||
		spec.Containers[0].LivenessProbe.GRPC.Mode != nil {
		t.Errorf("update: %+v", spec)
	}
}

func TestPrepareCreate(t *testing.T) {
	pod := &corev1.Pod{Spec: specOf(t, `
schedulingGates: [{name: g}]
containers: [{name: a, image: x}]
affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k, labelSelector: {}, matchLabelKeys: [app], mismatchLabelKeys: [rev]}]}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: k, whenUnsatisfiable: DoNotSchedule, labelSelector: {}, matchLabelKeys: [app, absent]}]`)}
	pod.Labels = map[string]string{"app": "web", "rev": "1"}
	pod.Annotations = map[string]string{podspec.AppArmorPrefix + "a": "localhost/mine"}
	pod.Status.Phase = corev1.PodRunning
	early := kindtest.Create(Pod(gates.On{}), pod)
	kindtest.Same(t, "pod", Pod(gates.On{}).Validate(pod), nil)
	term := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchExpressions
	if len(term) != 2 || term[0].Operator != "In" || term[0].Values[0] != "web" || term[1].Operator != "NotIn" ||
		term[1].Values[0] != "1" {
		t.Errorf("affinity: %v", term)
	}
	if got := pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions; len(got) != 1 ||
		got[0].Key != "app" {
		t.Errorf("spread: %v", got)
	}
	if pod.Status.Phase != corev1.PodPending ||
		Condition(pod, corev1.PodScheduled).Reason != corev1.PodReasonSchedulingGated {
		t.Errorf("status: %+v", pod.Status)
	}
	if a := pod.Spec.Containers[0].SecurityContext.AppArmorProfile; a.Type != corev1.AppArmorProfileTypeLocalhost ||
		*a.LocalhostProfile != "mine" {
		t.Errorf("AppArmor: %+v", a)
	}
	if len(early) != 1 ||
		early[0] != `metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: deprecated since v1.30; use the "appArmorProfile" field instead` {
		t.Errorf("warnings: %q", early)
	}
}

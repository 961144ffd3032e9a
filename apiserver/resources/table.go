// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	scalingv1 "k8s.io/api/autoscaling/v1"
	scalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"keelson/api/admissionregistration"
	"keelson/api/apiextensions"
	"keelson/api/apiregistration"
	"keelson/api/apps"
	"keelson/api/autoscaling"
	"keelson/api/batch"
	"keelson/api/certificates"
	"keelson/api/coordination"
	"keelson/api/core"
	"keelson/api/core/pod"
	"keelson/api/core/service"
	"keelson/api/core/volume"
	"keelson/api/decisions"
	"keelson/api/discovery"
	"keelson/api/events"
	"keelson/api/flowcontrol"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/metrics"
	"keelson/api/networking"
	"keelson/api/node"
	"keelson/api/policy"
	"keelson/api/rbac"
	"keelson/api/resource"
	"keelson/api/scheduling"
	"keelson/api/storage"
	"keelson/api/storagemigration"
)

// Table lists every resource that the server serves with these feature gates. To add a kind, add a line.
func Table(on gates.On) []Row {
	return slices.Concat(coreGroup(on), namedGroups(on), podGroups(on), reviews())
}

func coreGroup(on gates.On) []Row {
	return []Row{
		{
			Kind:            core.Namespace(),
			IsNamespace:     true,
			DeletionBlocked: namespaceHasFinalizers,
			Terminate:       terminateNamespace,
			ExcludedVerbs:   []string{"deletecollection"},
		},
		{Kind: core.Node(), Subresources: nodeSubs},
		{Kind: core.ConfigMap()},
		{Kind: core.Secret()},
		{Kind: core.ServiceAccount(), Subresources: []Sub{tokenSub}, ReturnsDeleted: true},
		{Kind: service.Service(), NameOnCreate: true, Subresources: serviceSubs, ReturnsDeleted: true},
		{
			Kind:             pod.Pod(on),
			MirrorAnnotation: corev1.MirrorPodAnnotationKey,
			Subresources:     podSubs,
			ReturnsDeleted:   true,
			Indexed:          byNode(nodeOfPod),
			ResetFields:      podReset,
		},
		{Kind: core.ReplicationController(on)},
		{
			Kind:       service.Endpoints(),
			Deprecated: "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
		},
		{Kind: core.LimitRange()},
		{Kind: core.ResourceQuota(), NameOnCreate: true},
		{Kind: volume.PersistentVolume(), ReturnsDeleted: true},
		{Kind: volume.PersistentVolumeClaim(), ReturnsDeleted: true},
		{
			Kind:          core.ComponentStatus(),
			Computed:      true,
			Deprecated:    "v1 ComponentStatus is deprecated in v1.19+",
			ExcludedVerbs: readOnly,
		},
		{Kind: core.PodTemplate(on), NameOnCreate: true, ReturnsDeleted: true},
		{Kind: core.Event(), AllowsAnyFinalizer: objectOnly, TTL: true},
	}
}

func namedGroups(on gates.On) []Row {
	return []Row{
		{Kind: events.Event(), TTL: true, View: eventView},
		{Kind: admissionregistration.ValidatingWebhookConfiguration(), AllowsAnyFinalizer: all},
		{Kind: admissionregistration.MutatingWebhookConfiguration(), AllowsAnyFinalizer: all},
		{Kind: admissionregistration.ValidatingAdmissionPolicy(), AllowsAnyFinalizer: all, ResetFields: statusOnly},
		{Kind: admissionregistration.ValidatingAdmissionPolicyBinding(), AllowsAnyFinalizer: all},
		{Kind: admissionregistration.MutatingAdmissionPolicy(), AllowsAnyFinalizer: all},
		{Kind: admissionregistration.MutatingAdmissionPolicyBinding(), AllowsAnyFinalizer: all},
		{Kind: apps.Deployment(on), NameOnCreate: true, ResetFields: deploymentReset},
		{Kind: apps.ReplicaSet(on), NameOnCreate: true},
		{Kind: apps.StatefulSet(on), NameOnCreate: true},
		{Kind: apps.DaemonSet(on), NameOnCreate: true},
		{Kind: apps.ControllerRevision()},
		{Kind: autoscaling.HorizontalPodAutoscalerV2(), NameOnCreate: true},
		{Kind: autoscaling.HorizontalPodAutoscalerV1(), NameOnCreate: true, View: scalerView},
		{
			Kind:         batch.Job(on),
			NameOnCreate: true,
			OrphanWarning: "child pods are preserved by default when jobs are deleted; set " +
				"propagationPolicy=Background to remove them " +
				"or set propagationPolicy=Orphan to suppress this warning",
		},
		{Kind: batch.CronJob(on), NameOnCreate: true, AllowsAnyFinalizer: []string{"status"}},
		{
			Kind:        certificates.CertificateSigningRequest(),
			SetCreator:  certificates.SetRequester,
			ResetFields: requestReset,
		},
		{Kind: certificates.ClusterTrustBundle()},
		{Kind: certificates.PodCertificateRequest()},
		{Kind: coordination.Lease(), NameOnCreate: true, AllowsAnyFinalizer: objectOnly},
		{Kind: discovery.EndpointSlice()},
		{Kind: flowcontrol.FlowSchema(), ResetFields: statusOnly},
		{Kind: flowcontrol.PriorityLevelConfiguration(), ResetFields: statusOnly},
		{Kind: metrics.NodeMetrics(), Computed: true, ExcludedVerbs: readOnly},
		{Kind: metrics.PodMetrics(), Computed: true, ExcludedVerbs: readOnly},
		{Kind: metrics.NodeMetricsV1beta1(), Computed: true, ExcludedVerbs: readOnly, View: metricsView("nodes")},
		{Kind: metrics.PodMetricsV1beta1(), Computed: true, ExcludedVerbs: readOnly, View: metricsView("pods")},
		{Kind: decisions.Kind(), Computed: true, ExcludedVerbs: readOnly},
		{Kind: networking.Ingress()},
		{Kind: networking.IngressClass()},
		{Kind: networking.NetworkPolicy(), NameOnCreate: true},
		{Kind: networking.IPAddress()},
		{Kind: networking.ServiceCIDR(), NameOnCreate: true},
		{Kind: node.RuntimeClass(), AllowsAnyFinalizer: objectOnly},
		{Kind: policy.PodDisruptionBudget(), AllowsAnyFinalizer: []string{"", "status"}},
		{Kind: rbac.Role()},
		{Kind: rbac.ClusterRole()},
		{Kind: rbac.RoleBinding()},
		{Kind: rbac.ClusterRoleBinding()},
		{Kind: resource.DeviceClass(), NameOnCreate: true, ReturnsDeleted: true},
		{Kind: resource.DeviceTaintRule(), NameOnCreate: true, ResetFields: statusOnly},
		{Kind: resource.ResourceClaim(), ReturnsDeleted: true},
		{Kind: resource.ResourceClaimTemplate(), ReturnsDeleted: true},
		{Kind: resource.ResourceSlice(), NameOnCreate: true, ReturnsDeleted: true, Indexed: byNode(nodeOfSlice)},
		{Kind: scheduling.PriorityClass(), NameOnCreate: true, ProtectDelete: scheduling.ProtectDelete},
		{Kind: apiregistration.APIService(), AllowsAnyFinalizer: all, KeepsEmptyFields: true},
		{Kind: storage.StorageClass(), ReturnsDeleted: true},
		{Kind: storage.VolumeAttributesClass(), ReturnsDeleted: true},
		{Kind: storage.VolumeAttachment(), NameInSubresources: true, ReturnsDeleted: true, ResetFields: statusOnly},
		{Kind: storage.CSIDriver(), NameOnCreate: true, ReturnsDeleted: true},
		{Kind: storage.CSINode(), ReturnsDeleted: true},
		{Kind: storage.CSIStorageCapacity()},
		{Kind: storagemigration.StorageVersionMigration(), ResetFields: statusOnly},
		{
			Kind:               apiextensions.CustomResourceDefinition(),
			AllowsAnyFinalizer: all,
			KeepsEmptyFields:   true,
			Packed:             true,
			DeletionBlocked:    apiextensions.Held,
			Terminate:          apiextensions.Terminate,
		},
	}
}

// podGroups are the kinds of the feature gate GenericWorkload.
func podGroups(on gates.On) []Row {
	if !on.GenericWorkload {
		return nil
	}
	return []Row{{Kind: scheduling.Workload()}, {Kind: scheduling.PodGroup(), ResetFields: statusOnly}}
}

// Values of AllowsAnyFinalizer.
var (
	all        = []string{"*"}
	objectOnly = []string{""}
)

// readOnly are the verbs that computed kinds exclude.
var readOnly = []string{"create", "delete", "deletecollection", "patch", "update", "watch"}

var (
	get       = []string{"get"}
	createGet = []string{"create", "get"}
	anyMethod = []string{"create", "delete", "get", "patch", "update"}
)

func coreKind(name string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(name) }

var podSubs = []Sub{
	{Name: "attach", GVK: coreKind("PodAttachOptions"), Verbs: createGet, Connect: true},
	{Name: "binding", GVK: coreKind("Binding"), Verbs: createVerbs},
	{Name: "eviction", GVK: policyv1.SchemeGroupVersion.WithKind("Eviction"), Verbs: createVerbs},
	{Name: "exec", GVK: coreKind("PodExecOptions"), Verbs: createGet, Connect: true},
	{Name: "log", GVK: coreKind("Pod"), Verbs: get, Connect: true},
	{Name: "portforward", GVK: coreKind("PodPortForwardOptions"), Verbs: createGet, Connect: true},
	{Name: "proxy", GVK: coreKind("PodProxyOptions"), Verbs: anyMethod, Connect: true},
}

var (
	nodeSubs = []Sub{{
		Name:    "proxy",
		GVK:     coreKind("NodeProxyOptions"),
		Verbs:   anyMethod,
		Connect: true,
	}}
	serviceSubs = []Sub{{
		Name:    "proxy",
		GVK:     coreKind("ServiceProxyOptions"),
		Verbs:   anyMethod,
		Connect: true,
	}}
	tokenSub = Sub{Name: "token", GVK: authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"), Verbs: createVerbs}
)

// namespaceHasFinalizers: the finalizers in a namespace's spec block its deletion; the namespace controller removes
// them.
func namespaceHasFinalizers(obj kind.Object) bool {
	ns, ok := obj.(*corev1.Namespace)
	return ok && len(ns.Spec.Finalizers) > 0
}

func terminateNamespace(obj kind.Object) {
	if ns, ok := obj.(*corev1.Namespace); ok {
		ns.Status.Phase = corev1.NamespaceTerminating
	}
}

// Values of ResetFields where a subresource keeps more than the status or the spec.
var (
	podReset = map[string][][]string{
		"status":              {{"spec"}, {"metadata", "deletionTimestamp"}, {"metadata", "ownerReferences"}},
		"resize":              {{"status"}},
		"ephemeralcontainers": {{"status"}},
	}
	deploymentReset = map[string][][]string{"status": {{"spec"}, {"metadata", "labels"}}}
	// statusOnly: an update of the status does not change metadata either.
	statusOnly   = map[string][][]string{"status": {{"spec"}, {"metadata"}}}
	requestReset = map[string][][]string{
		"":         {{"spec"}, {"status"}},
		"status":   {{"spec"}},
		"approval": {{"spec"}, {"status", "certificate"}},
	}
)

// byNode indexes a kind by the node of its objects.
func byNode[T kind.Object](node func(T) string) map[string]func(kind.Object) string {
	return map[string]func(kind.Object) string{"spec.nodeName": func(obj kind.Object) string {
		o, ok := obj.(T)
		if !ok {
			return ""
		}
		return node(o)
	}}
}

func nodeOfPod(p *corev1.Pod) string { return p.Spec.NodeName }

func nodeOfSlice(s *resourcev1.ResourceSlice) string {
	if s.Spec.NodeName == nil {
		return ""
	}
	return *s.Spec.NodeName
}

var eventView = &View{
	Of: schema.GroupResource{Resource: "events"},
	ToServed: func(stored kind.Object) kind.Object {
		if e, ok := stored.(*corev1.Event); ok {
			return events.FromCore(e)
		}
		return stored
	},
	ToStored: func(served kind.Object) kind.Object {
		if e, ok := served.(*eventsv1.Event); ok {
			return events.ToCore(e)
		}
		return served
	},
	FieldLabel: func(label string) string {
		if label == "reportingController" {
			return "reportingComponent"
		}
		if rest, ok := strings.CutPrefix(label, "regarding."); ok {
			return "involvedObject." + rest
		}
		return label
	},
}

// metricsView is metrics.k8s.io/v1beta1, whose objects have the fields of v1. They are read-only.
func metricsView(resource string) *View {
	return &View{
		Of:       schema.GroupResource{Group: metricsv1.GroupName, Resource: resource},
		ToServed: metrics.ToV1beta1,
		ToStored: metrics.ToV1,
	}
}

var scalerView = &View{
	Of: schema.GroupResource{Group: scalingv2.GroupName, Resource: "horizontalpodautoscalers"},
	ToServed: func(stored kind.Object) kind.Object {
		if h, ok := stored.(*scalingv2.HorizontalPodAutoscaler); ok {
			return autoscaling.FromV2(h)
		}
		return stored
	},
	ToStored: func(served kind.Object) kind.Object {
		if h, ok := served.(*scalingv1.HorizontalPodAutoscaler); ok {
			return autoscaling.ToV2(h)
		}
		return served
	},
}

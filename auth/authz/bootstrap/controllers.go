// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"maps"

	rbacv1 "k8s.io/api/rbac/v1"
)

// controllers maps each controller's service account in kube-system to its rules.
func controllers() map[string][]rbacv1.PolicyRule {
	m := workloadControllers()
	maps.Copy(m, clusterControllers())
	maps.Copy(m, volumeControllers())
	for name := range m {
		m[name] = append(m[name], events...)
	}
	maps.Copy(m, silentControllers())
	return m
}

func workloadControllers() map[string][]rbacv1.PolicyRule {
	const pods = "create delete list watch patch"
	return map[string][]rbacv1.PolicyRule{
		"replication-controller": {
			on(read+" update", "", "replicationcontrollers"),
			on("update", "", "replicationcontrollers/status replicationcontrollers/finalizers"),
			on(pods+" get", "", "pods"),
		},
		"replicaset-controller": {
			on(read+" update", "apps", "replicasets"),
			on("update", "apps", "replicasets/status replicasets/finalizers"), on(pods+" get", "", "pods"),
			on(read+" update", "extensions", "replicasets"),
			on("update", "extensions", "replicasets/status replicasets/finalizers"),
		},
		"deployment-controller": {
			on(read+" update", "apps", "deployments"),
			on("update", "apps", "deployments/status deployments/finalizers"),
			on("create delete get list patch update watch", "apps", "replicasets"),
			on("get list update watch", "", "pods"),
			on(read+" update", "extensions", "deployments"),
			on("update", "extensions", "deployments/status deployments/finalizers"),
			on("create delete get list patch update watch", "extensions", "replicasets"),
		},
		"statefulset-controller": {
			on("list watch", "", "pods"), on(read, "apps", "statefulsets"),
			on("update", "apps", "statefulsets/status statefulsets/finalizers"),
			on("create delete get patch update", "", "pods"), on("update", "", "pods/finalizers"),
			on("create delete get list patch update watch", "apps", "controllerrevisions"),
			on("create get list watch update delete", "", "persistentvolumeclaims"),
		},
		"daemon-set-controller": {
			on(read, "apps", "daemonsets"), on("update", "apps", "daemonsets/status daemonsets/finalizers"),
			on("list watch", "", "nodes"),
			on(pods, "", "pods"), on("create", "", "pods/binding"),
			on(read, "extensions", "daemonsets"),
			on("update", "extensions", "daemonsets/status daemonsets/finalizers"),
			on("create delete get list patch update watch", "apps", "controllerrevisions"),
		},
		"job-controller": {
			on(read+" patch update", "batch", "jobs"), on("update", "batch", "jobs/status jobs/finalizers"),
			on(pods, "", "pods"),
		},
		"cronjob-controller": {
			on(read+" update", "batch", "cronjobs"), on("create delete get list patch update watch", "batch", "jobs"),
			on("update", "batch", "cronjobs/status cronjobs/finalizers"), on("delete list watch", "", "pods"),
		},
		"horizontal-pod-autoscaler": {
			on(read, "autoscaling", "horizontalpodautoscalers"),
			on("update", "autoscaling", "horizontalpodautoscalers/status"),
			on("get update", "*", "*/scale"), on("list watch", "", "pods"),
			on(read, "custom.metrics.k8s.io", "*"), on(read, "external.metrics.k8s.io", "*"),
			on("list watch", "metrics.k8s.io", "pods"),
		},
		"disruption-controller": {
			on(read, "apps", "deployments replicasets statefulsets"),
			on(read, "extensions", "deployments replicasets"), on(read, "", "pods replicationcontrollers"),
			on(read, "policy", "poddisruptionbudgets"), on("update", "policy", "poddisruptionbudgets/status"),
			on("patch update", "", "pods/status"), on("get", "*", "*/scale"),
		},
		"ttl-after-finished-controller": {on("delete get list watch", "batch", "jobs")},
	}
}

func clusterControllers() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		"generic-garbage-collector": {on("delete get list patch update watch", "*", "*")},
		"namespace-controller": {
			on("delete get list watch", "", "namespaces"), on("update", "", "namespaces/finalize namespaces/status"),
			on("delete deletecollection get list watch", "*", "*"),
		},
		"service-account-controller": {
			on("create", "", "serviceaccounts"), on("list watch", "", "namespaces serviceaccounts"),
		},
		"root-ca-cert-publisher": {
			on("create update", "", "configmaps"), on("list watch get", "", "configmaps namespaces"),
		},
		"pod-garbage-collector": {
			on("delete get list watch", "", "pods"), on("get list watch", "", "nodes"), on("patch", "", "pods/status"),
		},
		"node-controller": nodeController(),
		"taint-eviction-controller": {
			on("delete get list watch", "", "pods"), on("patch update", "", "pods/status"), on(read, "", "nodes"),
		},
		"clusterrole-aggregation-controller": {
			on("escalate get list patch update watch", "rbac.authorization.k8s.io", "clusterroles"),
		},
		"serviceaccount-token-controller": {
			on(read+" update delete", "", "secrets"), on(read, "", "serviceaccounts"),
		},
		"endpoint-controller": {
			on(read, "", "pods services"), on("create delete get list update watch", "", "endpoints"),
			on("create", "", "endpoints/restricted"),
		},
		"endpointslice-controller": {
			on(read, "", "nodes pods services"), on("update", "", "services/finalizers"),
			on("create delete get list update watch", "discovery.k8s.io", "endpointslices"),
			on("create", "discovery.k8s.io", "endpointslices/restricted"),
		},
		"endpointslicemirroring-controller": {
			on(read, "", "endpoints services"), on("update", "", "services/finalizers endpoints/finalizers"),
			on("create delete get list update watch", "discovery.k8s.io", "endpointslices"),
			on("create", "discovery.k8s.io", "endpointslices/restricted"),
		},
		"resourcequota-controller": {on("list watch", "*", "*"), on("update", "", "resourcequotas/status")},
		"certificate-controller": {
			on("delete get list watch", "certificates.k8s.io", "certificatesigningrequests"),
			on("update", "certificates.k8s.io",
				"certificatesigningrequests/approval certificatesigningrequests/status"),
			on("create", "authorization.k8s.io", "subjectaccessreviews"),
			on("list", "", "nodes"), named("get", "", "services", "kubernetes"),
			named("get", "discovery.k8s.io", "endpointslices", "kubernetes"),
			named("approve", "certificates.k8s.io", "signers",
				"kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving"),
			named("sign", "certificates.k8s.io", "signers",
				"kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving "+
					"kubernetes.io/kube-apiserver-client kubernetes.io/legacy-unknown"),
		},
		"service-controller": {
			on(read, "", "services"), on("patch update", "", "services/status"), on("list watch", "", "nodes"),
		},
		"route-controller": {on("list watch", "", "nodes"), on("patch", "", "nodes/status")},
		"ttl-controller":   {on("list patch update watch", "", "nodes")},
		"service-cidrs-controller": {
			on(read+" patch update", "networking.k8s.io", "servicecidrs"), on("patch update", "networking.k8s.io",
				"servicecidrs/finalizers servicecidrs/status"), on(read, "networking.k8s.io", "ipaddresses"),
		},
		"legacy-service-account-token-cleaner": {
			named("get", "", "configmaps", "kube-apiserver-legacy-service-account-token-tracking"),
			on("delete patch", "", "secrets"),
		},
		"validatingadmissionpolicy-status-controller": {
			on(read, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
			on("get patch update", "admissionregistration.k8s.io", "validatingadmissionpolicies/status"),
		},
		"resource-claim-controller": {
			on("update", "", "pods/finalizers"), on(read, "", "pods"),
			on("create delete get list patch update watch", "resource.k8s.io", "resourceclaims"),
			on("patch update", "resource.k8s.io", "resourceclaims/status resourceclaims/binding"),
			on("patch update", "", "pods/status"),
		},
		"device-taint-eviction-controller": {
			on("delete get list watch", "", "pods"), on("patch update", "", "pods/status"),
			on(read, "resource.k8s.io", "resourceclaims resourceslices deviceclasses devicetaintrules"),
			on("patch update", "resource.k8s.io", "devicetaintrules/status"),
		},
		"kube-apiserver-serving-clustertrustbundle-publisher": {
			named("attest", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-serving"),
			on("create delete list update watch", "certificates.k8s.io", "clustertrustbundles"),
		},
		"selinux-warning-controller": {
			on(read, "", "persistentvolumes persistentvolumeclaims pods"), on(read, "storage.k8s.io", "csidrivers"),
		},
		// Keelson's own controller.
		"simulate-controller": {
			on("create delete get list patch update watch", "", "nodes"),
			on("patch update", "", "nodes/status pods/status"),
			on("delete get list watch", "", "pods"), on("create get list patch update watch", "coordination.k8s.io",
				"leases"),
		},
	}
}

func volumeControllers() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		"persistent-volume-binder": {
			on("create delete get list update watch", "", "persistentvolumes"),
			on("update", "", "persistentvolumes/status persistentvolumeclaims/status"),
			on(read+" update", "", "persistentvolumeclaims"), on("create delete get list watch", "", "pods"),
			on(read, "storage.k8s.io", "storageclasses"), on(read, "", "nodes"), on("watch", "", "events"),
		},
		"local-volume-provisioner": {
			on("create delete get list patch update watch", "", "persistentvolumes"),
			on(read+" update", "", "persistentvolumeclaims"),
			on("update", "", "persistentvolumeclaims/status"), on(read+" create", "storage.k8s.io", "storageclasses"),
			on(read, "", "nodes"),
		},
		"pvc-protection-controller": {on(read+" update", "", "persistentvolumeclaims"), on("update",
			"", "persistentvolumeclaims/status"), on(read, "", "pods")},
		"pv-protection-controller": {on(read+" update", "", "persistentvolumes")},
		"volumeattributesclass-protection-controller": {on(read, "", "persistentvolumeclaims persistentvolumes"), on(
			read+" update", "storage.k8s.io", "volumeattributesclasses")},
		"expand-controller": {
			on(read+" patch update", "", "persistentvolumes"), on("patch update", "", "persistentvolumeclaims/status"),
			on(read, "", "persistentvolumeclaims"),
		},
		"attachdetach-controller": {
			on("list watch", "", "persistentvolumes persistentvolumeclaims pods"), on(read, "", "nodes"),
			on("patch update", "", "nodes/status"), on("create delete get list watch", "storage.k8s.io",
				"volumeattachments"), on(read, "storage.k8s.io", "csidrivers csinodes"),
		},
		"ephemeral-volume-controller": {on("update", "", "pods/finalizers"), on(read, "", "pods"), on(
			"create get list watch", "", "persistentvolumeclaims")},
	}
}

func nodeController() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		// create: to replace a Node when its pod CIDR changes
		on("create delete get list patch update watch", "", "nodes"),
		on("patch update", "", "nodes/status pods/status"),
		on("delete get list watch", "", "pods"), on("list get watch", "coordination.k8s.io", "leases"),
	}
}

// silentControllers record no events.
func silentControllers() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		"podcertificaterequestcleaner": {on("delete get list watch", "certificates.k8s.io", "podcertificaterequests")},
		"storage-version-migrator-controller": {
			on("list patch", "*", "*"), on("get", "apiextensions.k8s.io", "customresourcedefinitions"),
			on("patch", "apiextensions.k8s.io", "customresourcedefinitions/status"),
			on("update", "storagemigration.k8s.io", "storageversionmigrations/status"),
		},
	}
}

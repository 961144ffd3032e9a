// SPDX-License-Identifier: Apache-2.0

package bootstrap

import rbacv1 "k8s.io/api/rbac/v1"

// NodeRules are the rights of every node: of the ClusterRole system:node and of the Node authorizer.
func NodeRules() []rbacv1.PolicyRule {
	return append([]rbacv1.PolicyRule{
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "localsubjectaccessreviews subjectaccessreviews"),
		on(read, "", "services"),
		on("create get list watch", "", "nodes"),
		on("patch update", "", "nodes/status"),
		on("patch update", "", "nodes"),
		on(read, "", "pods"),
		on("create delete", "", "pods"),
		on("patch update", "", "pods/status"),
		on("create", "", "pods/eviction"),
		on("get", "", "configmaps secrets persistentvolumeclaims persistentvolumes endpoints serviceaccounts"),
		on("list watch", "", "configmaps secrets"),
		on("create", "certificates.k8s.io", "certificatesigningrequests"),
		on(read, "certificates.k8s.io", "certificatesigningrequests"),
		on("get patch update", "", "persistentvolumeclaims/status"),
		on("get", "storage.k8s.io", "volumeattachments"),
		on("create", "", "serviceaccounts/token"),
		on("create delete get patch update", "coordination.k8s.io", "leases"),
		on("create delete get patch update", "storage.k8s.io", "csinodes"),
		on(read, "storage.k8s.io", "csidrivers"),
		on(read, "node.k8s.io", "runtimeclasses"),
		on("get", "resource.k8s.io", "resourceclaims"),
		on("deletecollection", "resource.k8s.io", "resourceslices"),
		on(read, "certificates.k8s.io", "clustertrustbundles"),
		on("create "+read, "certificates.k8s.io", "podcertificaterequests"),
		paths("post", "/keelson/v1/marks"), paths("get", "/keelson/v1/tunnel"),
	}, events...)
}

func components() map[string][]rbacv1.PolicyRule {
	signer := func(name string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{named("approve", "certificates.k8s.io", "signers", name)}
	}
	return map[string][]rbacv1.PolicyRule{
		"system:node": NodeRules(),
		"system:node-problem-detector": append(
			[]rbacv1.PolicyRule{on("get", "", "nodes"), on("patch", "", "nodes/status")}, events...),
		"system:node-proxier": append([]rbacv1.PolicyRule{
			on("list watch", "", "services endpoints"), on(read, "", "nodes"),
			on("list watch", "discovery.k8s.io", "endpointslices"),
			on("list watch", "networking.k8s.io", "servicecidrs"), paths("post", "/keelson/v1/marks"),
		}, events...),
		"system:kubelet-api-admin": {
			on(read+" proxy", "", "nodes"),
			on("*", "", "nodes/configz nodes/healthz nodes/log nodes/metrics nodes/pods nodes/proxy nodes/spec "+
				"nodes/stats"),
		},
		"system:node-bootstrapper": {
			on("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
		},
		"system:auth-delegator": {on("create", "authentication.k8s.io", "tokenreviews"), on("create",
			"authorization.k8s.io", "subjectaccessreviews")},
		"system:kube-aggregator": {on(read, "", "endpoints services")},
		"system:heapster": {
			on(read, "", "events namespaces nodes pods"), on(read, "extensions", "deployments"),
		},
		"system:kube-dns":                {on("list watch", "", "endpoints services")},
		"system:kube-controller-manager": controllerManager(),
		"system:kube-scheduler":          kubeScheduler(),
		"system:volume-scheduler": {
			on(read+" patch update", "", "persistentvolumes"), on(read, "storage.k8s.io", "storageclasses"),
			on(read+" patch update", "", "persistentvolumeclaims"),
		},
		"system:persistent-volume-provisioner": {
			on("create delete get list watch", "", "persistentvolumes"),
			on(read+" update", "", "persistentvolumeclaims"),
			on(read, "storage.k8s.io", "storageclasses"), on("watch", "", "events"),
			events[0],
		},
		"system:service-account-issuer-discovery": {
			paths("get", "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks "+
				"/openid/v1/jwks/"),
		},
		"system:cluster-trust-bundle-discovery": {
			on(read, "certificates.k8s.io", "clustertrustbundles"),
		},
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient": {
			on("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient"),
		},
		"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": {
			on("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient"),
		},
		"system:certificates.k8s.io:kubelet-serving-approver": signer("kubernetes.io/kubelet-serving"),
		"system:certificates.k8s.io:kube-apiserver-client-approver": signer(
			"kubernetes.io/kube-apiserver-client"),
		"system:certificates.k8s.io:kube-apiserver-client-kubelet-approver": signer(
			"kubernetes.io/kube-apiserver-client-kubelet"),
		"system:certificates.k8s.io:legacy-unknown-approver": signer("kubernetes.io/legacy-unknown"),
	}
}

func controllerManager() []rbacv1.PolicyRule {
	return append([]rbacv1.PolicyRule{
		on("create", "coordination.k8s.io", "leases"),
		named("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
		on("create", "", "secrets serviceaccounts"),
		on("delete", "", "secrets"),
		on("get", "", "configmaps namespaces secrets serviceaccounts"),
		on("update", "", "secrets serviceaccounts"),
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "subjectaccessreviews"),
		on("list watch", "*", "*"),
		on("create", "", "serviceaccounts/token"),
		paths("post", "/keelson/v1/marks"),
	}, events...)
}

func kubeScheduler() []rbacv1.PolicyRule {
	return append([]rbacv1.PolicyRule{
		on("create", "coordination.k8s.io", "leases"),
		named(read+" update", "coordination.k8s.io", "leases", "kube-scheduler"),
		on("create delete deletecollection get list patch update watch", "coordination.k8s.io", "leasecandidates"),
		on(read, "", "nodes"),
		on("delete get list watch", "", "pods"),
		on("create", "", "bindings pods/binding"),
		on("patch update", "", "pods/status"),
		on(read, "", "replicationcontrollers services namespaces"),
		on(read, "apps", "replicasets statefulsets"),
		on(read, "policy", "poddisruptionbudgets"),
		on(read, "", "persistentvolumeclaims persistentvolumes"),
		on("create", "authentication.k8s.io", "tokenreviews"),
		on("create", "authorization.k8s.io", "subjectaccessreviews"),
		on(read, "storage.k8s.io", "csinodes csidrivers csistoragecapacities storageclasses volumeattachments"),
		on(read+" create delete update patch", "resource.k8s.io", "resourceclaims"),
		on(read+" update patch", "resource.k8s.io", "resourceclaims/status"),
		on("update patch", "resource.k8s.io", "resourceclaims/binding"),
		on("update", "", "pods/finalizers"),
		on(read, "extensions", "replicasets"),
		on(read, "resource.k8s.io", "deviceclasses resourceslices devicetaintrules"),
		on(read, "scheduling.keelson.dev", "schedulingpolicies"),
		on("update", "scheduling.keelson.dev", "schedulingpolicies/status"),
		named(read, "apiextensions.k8s.io", "customresourcedefinitions", "schedulingpolicies.scheduling.keelson.dev"),
		paths("post", "/keelson/v1/marks"),
	}, events...)
}

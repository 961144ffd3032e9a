// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/gates"
)

func userFacing() map[string][]rbacv1.PolicyRule {
	discovery := "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/"
	return map[string][]rbacv1.PolicyRule{
		"cluster-admin":    {on("*", "*", "*"), paths("*", "*")},
		"system:discovery": {paths("get", discovery)},
		"system:basic-user": {
			on("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
			on("create", "authentication.k8s.io", "selfsubjectreviews"),
		},
		"system:public-info-viewer": {paths("get", "/healthz /livez /readyz /version /version/")},
		// Not aggregated to view: a decision shows nodes, their free resources and pods of other namespaces.
		"system:poddecisions-reader": {on("get list", "decisions.keelson.io", "poddecisions")},
		"system:monitoring": {
			on("get", "", "nodes/metrics"),
			paths("get", "/flagz /healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/* "+
				"/statusz"),
		},
	}
}

// aggregated are admin, edit and view with their parts. Their rules are initially the union of these parts; the
// aggregation controller adds roles labelled rbac.authorization.k8s.io/aggregate-to-* later.
func aggregated(gated gates.On) []runtime.Object {
	parts := map[string][]rbacv1.PolicyRule{"admin": adminRules(), "edit": editRules(), "view": viewRules()}
	if gated.GenericWorkload {
		parts["edit"] = append(parts["edit"], groupRules.edit...)
		parts["view"] = append(parts["view"], groupRules.view...)
	}
	// metrics-server uses this name.
	usage := &rbacv1.ClusterRole{
		ObjectMeta: meta("system:aggregated-metrics-reader"),
		Rules: []rbacv1.PolicyRule{
			on(read, "metrics.k8s.io", "pods nodes"),
		},
	}
	out := []runtime.Object{usage}
	for _, name := range []string{"admin", "edit", "view"} {
		label := "rbac.authorization.k8s.io/aggregate-to-" + name
		part := &rbacv1.ClusterRole{ObjectMeta: meta("system:aggregate-to-" + name), Rules: parts[name]}
		part.Labels[label] = "true"
		usage.Labels[label] = "true"
		whole := &rbacv1.ClusterRole{
			ObjectMeta: meta(name),
			AggregationRule: &rbacv1.AggregationRule{
				ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{label: "true"}}},
			},
			Rules: append(slices.Clone(parts[name]), usage.Rules...),
		}
		switch name {
		case "admin":
			whole.Rules = slices.Concat(parts["admin"], usage.Rules, parts["edit"], parts["view"])
		case "edit":
			whole.Rules = slices.Concat(parts["edit"], usage.Rules, parts["view"])
			whole.Labels["rbac.authorization.k8s.io/aggregate-to-admin"] = "true"
		case "view":
			whole.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] = "true"
		}
		out = append(out, part, whole)
	}
	return out
}

func adminRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("create", "authorization.k8s.io", "localsubjectaccessreviews"),
		on(read+" "+write, "rbac.authorization.k8s.io", "roles rolebindings"),
	}
}

func editRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on(read, "", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
		on("impersonate", "", "serviceaccounts"),
		on(write, "", "pods pods/attach pods/exec pods/portforward pods/proxy"),
		on("create", "", "pods/eviction"),
		on(write, "", "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale "+
			"secrets serviceaccounts services services/proxy"),
		on(write, "events.k8s.io", "events"),
		on("create", "", "serviceaccounts/token"),
		on(write, "apps", "daemonsets deployments deployments/rollback deployments/scale replicasets "+
			"replicasets/scale statefulsets statefulsets/scale"),
		on(write, "autoscaling", "horizontalpodautoscalers"),
		on(write, "batch", "cronjobs jobs"),
		on(write, "extensions", "daemonsets deployments deployments/rollback deployments/scale ingresses "+
			"networkpolicies replicasets replicasets/scale replicationcontrollers/scale"),
		on(write, "policy", "poddisruptionbudgets"),
		on(write, "networking.k8s.io", "ingresses networkpolicies"),
		on(read+" "+write, "coordination.k8s.io", "leases"),
		on(write, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
	}
}

func viewRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on(read, "", "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods "+
			"replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status"),
		on(read, "", "bindings events limitranges namespaces/status pods/log pods/status "+
			"replicationcontrollers/status resourcequotas resourcequotas/status"),
		on(read, "events.k8s.io", "events"),
		on(read, "", "namespaces"),
		on(read, "discovery.k8s.io", "endpointslices"),
		on(read, "apps", "controllerrevisions daemonsets daemonsets/status deployments deployments/scale "+
			"deployments/status replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale "+
			"statefulsets/status"),
		on(read, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
		on(read, "batch", "cronjobs cronjobs/status jobs jobs/status"),
		on(read, "extensions", "daemonsets daemonsets/status deployments deployments/scale deployments/status "+
			"ingresses ingresses/status networkpolicies replicasets replicasets/scale replicasets/status "+
			"replicationcontrollers/scale"),
		on(read, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
		on(read, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
		on(read, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
	}
}

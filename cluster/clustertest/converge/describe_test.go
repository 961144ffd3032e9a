// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/cluster/clustertest"
)

// describe reports what there is, to find the reason of a failure.
func describe(t *testing.T, cluster *clustertest.Cluster) (out []string) {
	t.Helper()
	nodes, err := cluster.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		line := "node " + n.Name
		for _, cond := range n.Status.Conditions {
			line += fmt.Sprintf(" %s=%s", cond.Type, cond.Status)
		}
		out = append(out, fmt.Sprintf("%s taints %v unschedulable %t", line, n.Spec.Taints, n.Spec.Unschedulable))
	}
	pods, err := cluster.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		line := fmt.Sprintf("pod %s on %s is %s:", p.Name, p.Spec.NodeName, p.Status.Phase)
		for _, cond := range p.Status.Conditions {
			line += fmt.Sprintf(" %s=%s %s", cond.Type, cond.Status, cond.Message)
		}
		out = append(out, line)
	}
	return append(out, dying(t, cluster)...)
}

// dying are the objects that somebody has deleted, and that are still there, with what keeps them.
func dying(t *testing.T, cluster *clustertest.Cluster) (out []string) {
	t.Helper()
	resources := []schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"},
		{Version: "v1", Resource: "persistentvolumeclaims"},
		{
			Version:  "v1",
			Resource: "persistentvolumes",
		},
		{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
	}
	for _, k := range kinds {
		resources = append(resources, k.gvr)
	}
	for _, r := range resources {
		all, err := cluster.Dynamic.Resource(r).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range all.Items {
			o := &all.Items[i]
			if o.GetDeletionTimestamp() == nil {
				continue
			}
			line := fmt.Sprintf("%s %s (%s) was deleted %s", r.Resource, o.GetName(), o.GetUID(),
				o.GetDeletionTimestamp().UTC().Format("15:04:05"))
			if g := o.GetDeletionGracePeriodSeconds(); g != nil {
				line += fmt.Sprintf(", grace %d s", *g)
			}
			line += ", finalizers [" + strings.Join(o.GetFinalizers(), " ") + "]"
			for _, w := range o.GetOwnerReferences() {
				line += fmt.Sprintf(", owner %s %s (%s)", w.Kind, w.Name, w.UID)
				if w.BlockOwnerDeletion != nil && *w.BlockOwnerDeletion {
					line += " blocked"
				}
			}
			out = append(out, line)
		}
	}
	return out
}

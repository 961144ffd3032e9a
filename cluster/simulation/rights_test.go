// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster/clustertest"
	"keelson/cluster/datadir"
	"keelson/cluster/scheduling"
	"keelson/cluster/simulation"
)

// TestWhatIfTellsTheMissingRight: who may not read what the scheduler looks at learns at once which right is missing.
func TestWhatIfTellsTheMissingRight(t *testing.T) {
	c := clustertest.Start(t, clustertest.Config{HTTPS: true, Controllers: []string{}, Nodes: 1})
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "asks"},
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups: []string{""},
				Resources: []string{
					"pods", "nodes", "namespaces", "services", "replicationcontrollers", "persistentvolumeclaims",
				},
				Verbs: []string{"list", "watch"},
			},
			{
				APIGroups: []string{"apps", "scheduling.k8s.io", "storage.k8s.io", "policy", "resource.k8s.io"},
				Resources: []string{"*"},
				Verbs:     []string{"list", "watch"},
			},
		},
	}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "asks"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "asks"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of, err := clientcmd.LoadFromFile(c.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range of.AuthInfos {
		user.Impersonate = "jane"
	}
	path := filepath.Join(t.TempDir(), "jane")
	if err := clientcmd.WriteToFile(*of, path); err != nil {
		t.Fatal(err)
	}
	config, err := datadir.ReadKubeconfig("", path)
	if err != nil {
		t.Fatal(err)
	}
	question := &simulation.Question{Add: "1,cpu=1"}
	_, err = simulation.Ask(t.Context(), config, question, scheduling.Options{})
	if want := `read the cluster's state: persistentvolumes is forbidden: User "jane" cannot list resource "persistentvolumes" in API group "" at the cluster scope`; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Fatalf("got %v, want %s", err, want)
	}
	role.Rules[0].Resources = append(role.Rules[0].Resources, "persistentvolumes")
	if _, err := c.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	answer, err := simulation.Ask(t.Context(), config, question, scheduling.Options{})
	if err != nil || answer.Nodes != 2 {
		t.Fatalf("with the right: %+v, %v", answer, err)
	}
	if want := "SchedulingPolicies do not count: they may not be read"; !slices.Contains(answer.Notes, want) {
		t.Errorf("notes: %q, want %q among them", answer.Notes, want)
	}
}

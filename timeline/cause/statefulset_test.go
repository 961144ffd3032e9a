// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestUpdate: an update names the pod that it waits for; in an ordered set that may be one of the old template.
func TestUpdate(t *testing.T) {
	pod := func(name, revision, ready string) corev1.Pod {
		return *object[corev1.Pod](t, `{metadata: {name: `+name+`, labels: {controller-revision-hash: `+revision+
			`}}, status: {conditions: [{type: Ready, status: "`+ready+`"}]}}`)
	}
	const rolling, parallel = `updateStrategy: {type: RollingUpdate}`, `podManagementPolicy: Parallel`
	for name, tt := range map[string]struct {
		spec  string
		pods  []corev1.Pod
		want  string
		waits string
	}{
		"none":         {rolling, []corev1.Pod{pod("s-0", "new", "False")}, "", ""},
		"goes on":      {rolling, []corev1.Pod{pod("s-0", "old", "True"), pod("s-1", "new", "True")}, "", ""},
		"an old pod":   {rolling, []corev1.Pod{pod("s-1", "old", "True"), pod("s-0", "old", "False")}, "OrderedReady replaces no pod while s-0 is not Ready", "s-0"},
		"a new pod":    {rolling, []corev1.Pod{pod("s-0", "old", "True"), pod("s-1", "new", "False")}, "waits for s-1, which has the new template", "s-1"},
		"parallel":     {parallel, []corev1.Pod{pod("s-0", "old", "False"), pod("s-1", "new", "True")}, "", ""},
		"parallel new": {parallel, []corev1.Pod{pod("s-0", "old", "True"), pod("s-1", "new", "False")}, "waits for s-1", "s-1"},
		"on delete":    {`updateStrategy: {type: OnDelete}`, []corev1.Pod{pod("s-0", "old", "True")}, "`kubectl delete pod s-0 -n a`", "s-0"},
		"partition": {
			`updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}`,
			[]corev1.Pod{pod("s-0", "old", "True"), pod("s-1", "new", "True")},
			"", "",
		},
	} {
		set := object[appsv1.StatefulSet](t, `{metadata: {namespace: a, name: s}, spec: {`+tt.spec+`}, status: {updateRevision: new}}`)
		got, waits := Update(set, tt.pods)
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) || waits != tt.waits {
			t.Errorf("%s: got %q for %q, want %q for %q", name, got, waits, tt.want, tt.waits)
		}
	}
}

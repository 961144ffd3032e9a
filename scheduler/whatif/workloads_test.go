// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"keelson/client/clienttest"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/whatif"
)

// withSpec is an object of a kind, in YAML.
func withSpec(apiVersion, kind, name, spec string) string {
	return "---\napiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec: " + spec +
		"\n"
}

const (
	appTemplate = "selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, spec: {containers: " +
		"[{name: c, image: i}]}}"
	runTemplate = "template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}"
)

// TestWhatIfKinds: how many pods each kind leads to, what they are called, and which do not run now.
func TestWhatIfKinds(t *testing.T) {
	for _, tt := range []struct{ what, manifest, want string }{
		{"Pod", withSpec("v1", "Pod", "p", "{containers: [{name: c, image: i}]}"), "p: new -> a"},
		{
			"ReplicationController",
			withSpec("v1", "ReplicationController", "rc", "{replicas: 2, template: {metadata: {labels: {app: a}}, "+
				"spec: {containers: [{name: c, image: i}]}}}"), "rc-0: new -> a\nrc-1: new -> a",
		},
		{
			"ReplicaSet", withSpec("apps/v1", "ReplicaSet", "rs", "{replicas: 2, "+appTemplate+"}"),
			"rs-0: new -> a\nrs-1: new -> a",
		},
		{"Deployment", withSpec("apps/v1", "Deployment", "d", "{"+appTemplate+"}"), "d-0: new -> a"},
		{"scaled to nothing", withSpec("apps/v1", "Deployment", "d", "{replicas: 0, "+appTemplate+"}"), ""},
		{
			"paused", withSpec("apps/v1", "Deployment", "d", "{paused: true, "+appTemplate+"}"),
			"Deployment default/d is paused: it creates no pods",
		},
		{
			"StatefulSet", withSpec("apps/v1", "StatefulSet", "s", "{replicas: 2, ordinals: {start: 5}, "+appTemplate+
				"}"), "s-5: new -> a\ns-6: new -> a",
		},
		{"DaemonSet", withSpec("apps/v1", "DaemonSet", "ds", "{"+appTemplate+"}"), "ds-a: new -> a"},
		{
			"Job", withSpec("batch/v1", "Job", "j", "{parallelism: 3, completions: 2, "+runTemplate+"}"),
			"j-0: new -> a\nj-1: new -> a",
		},
		{
			"Job of a work queue", withSpec("batch/v1", "Job", "j", "{parallelism: 2, "+runTemplate+"}"),
			"j-0: new -> a\nj-1: new -> a",
		},
		{
			"indexed Job", withSpec("batch/v1", "Job", "j", "{completionMode: Indexed, completions: 1, "+runTemplate+
				"}"), "j-0: new -> a",
		},
		{
			"suspended Job", withSpec("batch/v1", "Job", "j", "{suspend: true, "+runTemplate+"}"),
			"Job default/j is suspended: it creates no pods",
		},
		{
			"Job of others", withSpec("batch/v1", "Job", "j", "{managedBy: x.io/y, "+runTemplate+"}"),
			"Job default/j is managed by x.io/y: it creates no pods",
		},
		{
			"CronJob", withSpec("batch/v1", "CronJob", "cj", "{schedule: '@daily', jobTemplate: {spec: {parallelism: "+
				"2, completions: 4, "+runTemplate+"}}}"), "cj-0: new -> a\ncj-1: new -> a",
		},
		{
			"suspended CronJob",
			withSpec("batch/v1", "CronJob", "cj", "{schedule: '@daily', suspend: true, jobTemplate: {spec: {"+
				runTemplate+"}}}"), "CronJob default/cj is suspended: it creates no pods",
		},
		{
			"generated name", "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: run-}\nspec: {" +
				runTemplate + "}", "run-0: new -> a",
		},
		{
			"List", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n- " +
				"{apiVersion: x.example/v1, kind: Thing}\n" +
				"- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}\n",
			"p: new -> a\nnot counted: 1 ConfigMap, 1 Thing.x.example",
		},
		{
			"list of a kind", "apiVersion: apps/v1\nkind: DeploymentList\nitems: [{metadata: {name: d}, spec: {" +
				appTemplate + "}}, {metadata: {name: e}, spec: {" + appTemplate + "}}]", "d-0: new -> a\ne-0: new -> a",
		},
	} {
		if got := asked(t, clienttest.New(schedtest.Node("a")), tt.manifest,
			func(*whatif.Config) {}); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.what, got, tt.want)
		}
	}
}

// TestWhatIfDependencies: objects that pods depend on may be in the same manifest, also after the pods.
func TestWhatIfDependencies(t *testing.T) {
	pod := func(more string) string {
		return withSpec("v1", "Pod", "p", "{containers: [{name: c, image: i}]"+more+"}")
	}
	const (
		local = "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: local, annotations: " +
			"{storageclass.kubernetes.io/is-default-class: 'true'}}\nprovisioner: " +
			"kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n"
		claimSpec = "{accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"
	)
	volume := withSpec("v1", "PersistentVolume", "v",
		"{storageClassName: local, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], local: {path: /x}, "+
			"nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, "+
			"operator: "+
			"In, values: [b]}]}]}}}")
	claim := withSpec("v1", "PersistentVolumeClaim", "c", claimSpec)
	node := schedtest.Node("a")
	b := schedtest.Node("b")
	for _, tt := range []struct {
		what, manifest string
		objs           []runtime.Object
		want           string
	}{
		{
			"priority class", pod(", priorityClassName: gold") + "---\napiVersion: scheduling.k8s.io/v1\nkind: " +
				"PriorityClass\nmetadata: {name: gold}\nvalue: 1000\n",
			[]runtime.Object{node, schedtest.Pod("waits", schedtest.Requests("4", ""))},
			"p: new -> a\nwaits: pending -> a",
		},
		{
			"late claim", pod(", volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]") + claim + volume +
				local, []runtime.Object{node, b}, "p: new -> b",
		},
		{
			"no volume for it", pod(", volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]") + claim + local,
			[]runtime.Object{
				node,
			},
			"p: new -> 0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind. " +
				"preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		{
			"no claim", pod(", volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]"),
			[]runtime.Object{node},
			`p: new -> 0/1 nodes are available: persistentvolumeclaim "c" not found. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.`,
		},
		{
			"ephemeral volume", pod(", volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: "+claimSpec+
				"}}}]") + volume + local, []runtime.Object{node, b}, "p: new -> b",
		},
		{
			"claims of a StatefulSet",
			withSpec("apps/v1", "StatefulSet", "s", "{"+appTemplate+", volumeClaimTemplates: [{metadata: {name: "+
				"data}, spec: "+claimSpec+"}]}") + volume + local,
			[]runtime.Object{node, b},
			"s-0: new -> b",
		},
		{
			"labels of a namespace", "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {team: " +
				"x}}\n" + pod(", affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "+
				"[{topologyKey: kubernetes.io/hostname, labelSelector: {}, namespaceSelector: {matchLabels: {team: "+
				"x}}}]}}"),
			[]runtime.Object{node, b, schedtest.Pod("here", schedtest.On("a"))},
			"p: new -> b",
		},
	} {
		if got := asked(t, clienttest.New(tt.objs...), tt.manifest, func(*whatif.Config) {}); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.what, got, tt.want)
		}
	}
	_, err := whatif.ReadManifest(strings.NewReader(local), "")
	if err == nil || !strings.Contains(err.Error(), "the manifest leads to no pods, it has 1 StorageClass") {
		t.Errorf("only a storage class: %v", err)
	}
}

// TestWhatIfSpreads: new pods are counted with those of their controller and not with others: by default spreading, by
// matchLabelKeys of spread constraints and of anti-affinity.
func TestWhatIfSpreads(t *testing.T) {
	zones := []runtime.Object{schedtest.Node("a", schedtest.Zone("a")), schedtest.Node("b", schedtest.Zone("b"))}
	old := func(name, node string) runtime.Object {
		return schedtest.Pod(name, schedtest.On(node), schedtest.Labelled("app", "web", "pod-template-hash", "old"))
	}
	key := "topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: " +
		"[pod-template-hash]"
	for _, tt := range []struct {
		what, more string
		objs       []runtime.Object
	}{
		{"by default", "", []runtime.Object{old("w", "b"), old("x", "b"), old("y", "b"), old("z", "b")}},
		{
			"spread constraint", ", topologySpreadConstraints: [{maxSkew: 1, whenUnsatisfiable: DoNotSchedule, " +
				key + "}]", []runtime.Object{old("x", "a"), old("y", "a")},
		},
		{
			"anti-affinity", ", affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{" +
				key + "}]}}", []runtime.Object{old("x", "a"), old("y", "b")},
		},
	} {
		want := []string{"web-0: new -> a\nweb-1: new -> b", "web-0: new -> b\nweb-1: new -> a"}
		if got := asked(t, clienttest.New(slices.Concat(zones, tt.objs)...), deployment(2, tt.more),
			func(*whatif.Config) {}); !slices.Contains(want, got) {
			t.Errorf("%s: got\n%s\nwant one on each node", tt.what, got)
		}
	}
}

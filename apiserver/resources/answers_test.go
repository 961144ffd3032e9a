// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

// named is the built-in kind called resource.version.
func named(t *testing.T, name string) *kind.Kind {
	t.Helper()
	for _, k := range stored() {
		if k.Resource+"."+k.Version == name {
			return k
		}
	}
	t.Fatalf("no kind %s", name)
	return nil
}

// created is the object of doc after all that the server does to it before it is judged.
func created(t *testing.T, k *kind.Kind, doc string) kind.Object {
	t.Helper()
	obj := k.New()
	if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
		t.Fatal(err)
	}
	if k.Namespaced {
		obj.SetNamespace("default")
	}
	kindtest.Create(k, obj)
	return obj
}

const template = `{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}`

// slice is the beginning of a slice of devices.
const slice = `{metadata: {name: x}, spec: {driver: d, nodeName: n, pool: {name: p, resourceSliceCount: 1}, `

// answers are what Kubernetes v1.37 answers to objects with something wrong, in its order: the beginning of each line.
// Each row pins one rule.
var answers = []struct{ what, kind, doc, want string }{
	{
		"no error twice", "configmaps.v1", `{metadata: {name: x, finalizers: [a, a]}}`,
		`metadata.finalizers[0]: Invalid value: "a": name is neither a standard finalizer name nor is it fully qualified` +
			"\n" +
			`metadata.finalizers[1]: Invalid value: "a": name is neither a standard finalizer name nor is it fully qualified`,
	},
	{
		"values have their names in Go", "poddisruptionbudgets.v1",
		`{metadata: {name: x}, spec: {minAvailable: 1, maxUnavailable: 2}}`,
		`spec: Invalid value: {"MinAvailable":1,"Selector":null,"MaxUnavailable":2,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set`,
	},
	{
		"the name comes last", "poddisruptionbudgets.v1", `{metadata: {name: a/b}, spec: {minAvailable: -1}}`,
		`spec.minAvailable: Invalid value: -1: must be greater than or equal to 0`,
	},
	{"any name that a path takes", "poddisruptionbudgets.v1", `{metadata: {name: A_b}, spec: {minAvailable: 1}}`, ``},
	{
		"declared rules", "replicationcontrollers.v1",
		`{metadata: {name: A}, spec: {replicas: -1, minReadySeconds: -1}}`, `spec.selector: Required value
spec.template: Required value
metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain
spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0
spec.replicas: Invalid value: -1: must be greater than or equal to 0`,
	},
	{
		"application protocols", "endpoints.v1",
		`{metadata: {name: x}, subsets: [{addresses: [{ip: ""}], ports: [{port: 1, appProtocol: "!"}]}]}`,
		`subsets[0].addresses[0].ip: Invalid value: "": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)
subsets[0].addresses[0].ip: Invalid value: "": must be a valid IP address
subsets[0].ports[0].appProtocol: Invalid value: "!": name part must consist of`,
	},
	{
		"distributions in their order", "services.v1",
		`{metadata: {name: x}, spec: {ports: [{port: 1}], trafficDistribution: x}}`,
		`spec.trafficDistribution: Unsupported value: "x": supported values: "PreferClose", "PreferSameZone", "PreferSameNode"`,
	},
	{
		"features of nodes", "nodes.v1",
		`{metadata: {name: x}, status: {declaredFeatures: [B, A, a], nodeInfo: {swap: {capacity: 0}}}}`,
		`metadata.nodeSwapStatus.capacity: Invalid value: 0: must be greater than zero
status.declaredFeatures[0]: Invalid value: "B": invalid feature name "B"
status.declaredFeatures[1]: Invalid value: "A": list must be sorted alphabetically
status.declaredFeatures[1]: Invalid value: "A": invalid feature name "A"
status.declaredFeatures[2]: Invalid value: "a": invalid feature name "a"`,
	},
	{
		"limits of resources that there are", "limitranges.v1",
		`{spec: {limits: [{type: x, max: {storage: 1}}, {type: Container, max: {storage: 1}}]}}`,
		`spec.limits[0].type: Invalid value: "x": must be a standard limit type or fully qualified
spec.limits[1].max[storage]: Invalid value: "storage": must be a standard resource for containers
spec.limits[1].default[storage]: Invalid value: "storage": must be a standard resource for containers
spec.limits[1].defaultRequest[storage]: Invalid value: "storage": must be a standard resource for containers`,
	},
	{
		"scopes nobody knows fit all", "resourcequotas.v1",
		`{metadata: {name: x}, spec: {hard: {pods: 1}, scopes: [x]}}`,
		`spec.scopes: Invalid value: ["x"]: unsupported scope`,
	},
	{
		"events by the old view", "events.v1",
		`{metadata: {name: A}, involvedObject: {namespace: other}, eventTime: "2024-01-01T00:00:00.000000Z"}`,
		`reportingComponent: Required value
reportingComponent: Invalid value: "": name part must be non-empty
reportingComponent: Invalid value: "": name part must consist of
reportingInstance: Required value
action: Required value
reason: Required value`,
	},
	{
		"a second source", "persistentvolumes.v1",
		`{metadata: {name: x}, spec: {capacity: {storage: 1}, accessModes: [ReadWriteOnce], nfs: {server: s, path: /p}, rbd: {}, flexVolume: {driver: d}, csi: {}}}`,
		`spec.rbd: Forbidden: may not specify more than 1 volume type
spec.csi: Forbidden: may not specify more than 1 volume type`,
	},
	{
		"secrets of volumes have namespaces", "persistentvolumes.v1",
		`{metadata: {name: x}, spec: {capacity: {storage: 1}, accessModes: [ReadWriteOnce], cinder: {volumeID: v, secretRef: {}}}}`,
		`spec.cinder.secretRef.name: Required value
spec.cinder.secretRef.namespace: Required value`,
	},
	{
		"sources of claims", "persistentvolumeclaims.v1",
		`{metadata: {name: x}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}, dataSource: {kind: A, name: n}, dataSourceRef: {apiGroup: b.c, kind: B, name: n}}}`,
		`spec.dataSource: Invalid value: "A": must be 'PersistentVolumeClaim' when referencing the default apiGroup
spec: Invalid value: {}: must match dataSourceRef`,
	},
	{
		"templates of claims", "statefulsets.v1",
		`{metadata: {name: x}, spec: {serviceName: A, selector: {matchLabels: {a: b}}, template: ` + template +
			`, volumeClaimTemplates: [{metadata: {name: v}}]}}`,
		`spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required
spec.volumeClaimTemplates[0].spec.resources[storage]: Required value
spec.serviceName: Invalid value: "A": a lowercase RFC 1123 label`,
	},
	{
		"no selector matches nothing", "deployments.v1",
		`{metadata: {name: x}, spec: {strategy: {type: x}, template: ` + template + `}}`,
		`spec.selector: Required value
spec.template.metadata.labels: Invalid value: {"a":"b"}: ` + "`selector` does not match template `labels`" + `
spec.strategy: Unsupported value: {"Type":"x","RollingUpdate":null}: supported values: "Recreate", "RollingUpdate"`,
	},
	{
		"scaling to zero", "horizontalpodautoscalers.v2",
		`{metadata: {name: x}, spec: {minReplicas: 0, maxReplicas: -1, scaleTargetRef: {apiVersion: apps/v1, kind: D, name: d}, metrics: [{type: ContainerResource, containerResource: {name: x, container: A, target: {type: Value, averageValue: 1}}}]}}`,
		"spec.maxReplicas: Invalid value: -1: must be greater than or equal to `minReplicas`" + `
spec.metrics[0].containerResource.name: Invalid value: "x": must be a standard resource type or fully qualified
spec.metrics[0].containerResource.name: Invalid value: "x": must be a standard resource for containers
spec.metrics[0].containerResource.container: Invalid value: "A": a lowercase RFC 1123 label
spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas
spec.maxReplicas: Invalid value: -1: must be greater than or equal to 1`,
	},
	{
		"attributes of devices", "resourceslices.v1",
		slice +
			`devices: [{name: d, attributes: {a: {version: x}, b: {}, c: {int: 1, bool: true}, 1d: {int: 1}}}, {name: d}]}}`,
		`spec.devices[0].attributes: Invalid value: "1d": a valid C identifier
spec.devices[0].attributes[a].version: Invalid value: "x": must be a string compatible with semver.org spec 2.0.0
spec.devices[1]: Duplicate value: "d"
spec.devices[0].attributes[b]: Invalid value: "": must specify one of: ` + "`int`, `bool`" + `
spec.devices[0].attributes[c]: Invalid value: "{int, bool}": must specify exactly one of: ` + "`int`, `bool`",
	},
	{
		"capacities of devices", "resourceslices.v1",
		slice +
			`devices: [{name: d, capacity: {c: {value: 10, requestPolicy: {default: 1}}}}, {name: e, allowMultipleAllocations: true, capacity: {
			a: {value: 10, requestPolicy: {validValues: [2, 1]}}, b: {value: 10, requestPolicy: {default: 3, validValues: [2, 1, 11]}},
			c: {value: 10, requestPolicy: {default: 4, validRange: {min: 1, max: 12, step: 2}}}, d: {value: 10, requestPolicy: {default: 1.5, validRange: {min: 1, step: 1}}}}}]}}`,
		`spec.devices[0].capacity[c].requestPolicy: Forbidden: allowMultipleAllocations must be true
spec.devices[1].capacity[a].requestPolicy.default: Required value: required when validValues is defined
spec.devices[1].capacity[b].requestPolicy.validValues[1]: Invalid value: "1": values must be sorted in ascending order
spec.devices[1].capacity[b].requestPolicy.validValues[2]: Invalid value: "11": option is larger than capacity value: 10
spec.devices[1].capacity[b].requestPolicy.validValues: Invalid value: "3": default value is not valid according to the requestPolicy
spec.devices[1].capacity[c].requestPolicy.validRange.max: Invalid value: "12": max is larger than capacity value: 10
spec.devices[1].capacity[c].requestPolicy.validRange.step: Invalid value: "4": value is not a multiple of a given step (2) from (1)
spec.devices[1].capacity[c].requestPolicy.validRange.step: Invalid value: "12": value is not a multiple of a given step (2) from (1)
spec.devices[1].capacity[d].requestPolicy.validRange.step: Invalid value: "1500m": value is not a multiple of a given step (1) from (1)`,
	},
	{
		"counters and conditions of devices", "resourceslices.v1",
		slice +
			`devices: [{name: d, nodeName: n, bindingConditions: [a, a], consumesCounters: [{}]}], sharedCounters: [{name: A, counters: {B: {value: 1}}}]}}`,
		`spec: Invalid value: "": only one of ` + "`sharedCounters` or `devices`" + ` is allowed
spec.devices[0]: Invalid value: null: ` + "`nodeName`, `nodeSelector` and `allNodes`" + ` can only be set if
spec.devices[0].bindingConditions[1]: Duplicate value: "a"
spec.devices[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions
spec.devices[0].consumesCounters[0].counterSet: Required value
spec.devices[0].consumesCounters[0].counters: Required value
spec.sharedCounters[0].name: Invalid value: "A": a lowercase RFC 1123 label
spec.sharedCounters[0].counters: Invalid value: "B": a lowercase RFC 1123 label`,
	},
	{
		"hints for nodes, ports and types of slices", "endpointslices.v1",
		`{metadata: {name: x}, addressType: IPv4, ports: [{port: -1}], endpoints: [{addresses: ["fd00::1"], hints: {forNodes: [{name: m}, {name: m}]}}, {addresses: []}]}`,
		`endpoints[0].addresses: Invalid value: "fd00::1": must be an IPv4 address
endpoints[0].hints.forNodes[1].name: Duplicate value: "m"
endpoints[1].addresses: Required value`,
	},
}

// TestUnconditional: budgets, unlike most kinds, are not replaced by who does not say which version they have seen.
func TestUnconditional(t *testing.T) {
	for name, want := range map[string]bool{
		"poddisruptionbudgets.v1": false,
		"leases.v1":               false,
		"configmaps.v1":           true,
	} {
		if got := named(t, name).UnconditionalUpdate; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range answers {
		k := named(t, c.kind)
		var got []string
		for _, err := range kind.ClientErrors(k.Check(t.Context(), created(t, k, c.doc))) {
			got = append(got, err.Error())
		}
		want := strings.FieldsFunc(c.want, func(r rune) bool { return r == '\n' })
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: got\n%s\nwant\n%s", c.what, strings.Join(got, "\n"), c.want)
		}
	}
}

// TestStored: what Kubernetes v1.37 makes of objects before it stores them; each row is a part that it shows.
func TestStored(t *testing.T) {
	for _, c := range []struct{ what, kind, doc, want string }{
		{
			"leases without the fields of a gate that is off", "leases.v1",
			`{metadata: {name: x}, spec: {holderIdentity: h, strategy: s, preferredHolder: p}}`,
			`"spec":{"holderIdentity":"h"}`,
		},
		{
			"slices without topology", "endpointslices.v1",
			`{metadata: {name: x}, addressType: IPv4, endpoints: [{addresses: [1.2.3.4], deprecatedTopology: {a: b}}]}`,
			`"endpoints":[{"addresses":["1.2.3.4"],"conditions":{}}]`,
		},
		{
			"nodes without configuration", "nodes.v1",
			`{metadata: {name: x}, spec: {providerID: p, configSource: {}}}`, `"spec":{"providerID":"p"}`,
		},
		{
			"claims of sets have a kind", "statefulsets.v1",
			`{metadata: {name: x}, spec: {volumeClaimTemplates: [{metadata: {name: v}}]}}`,
			`{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"v"}`,
		},
		{
			"jobs have their template's labels", "jobs.v1",
			`{metadata: {name: x}, spec: {template: {metadata: {labels: {a: b}}}}}`,
			`"labels":{"a":"b","batch.kubernetes.io/controller-uid":"","batch.kubernetes.io/job-name":"x","controller-uid":"","job-name":"x"}},"spec":{"parallelism"`,
		},
		{
			"containers without stop signals", "podtemplates.v1",
			`{metadata: {name: x}, template: {spec: {containers: [{name: c, image: i, lifecycle: {stopSignal: SIGHUP}}]}}}`,
			`"containers":[{"name":"c","image":"i","resources":{},"terminationMessagePath"`,
		},
		{
			"claims without sources elsewhere", "persistentvolumeclaims.v1",
			`{metadata: {name: x}, spec: {volumeName: v, dataSourceRef: {kind: K, name: n, namespace: o}}}`,
			`"spec":{"resources":{},"volumeName":"v","volumeMode":"Filesystem"}`,
		},
		{
			"the template's generation of daemon sets", "daemonsets.v1", `{metadata: {name: x}}`,
			`"annotations":{"deprecated.daemonset.template.generation":"1"}`,
		},
	} {
		k := named(t, c.kind)
		got, err := json.Marshal(created(t, k, c.doc))
		if err != nil || !strings.Contains(string(got), c.want) {
			t.Errorf("%s: got %s (%v), want %s in it", c.what, got, err, c.want)
		}
	}
}

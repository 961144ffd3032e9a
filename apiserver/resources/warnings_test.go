// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

const (
	hostAdvice = "this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is " +
		"recommended: [must not contain dots]"
	// hiding is a pod's spec with a variable that hides another.
	hiding = `{restartPolicy: %s, containers: [{name: c, image: i, env: [{name: B, value: "1"}, {name: B, value: "2"}]}]}`
	hidden = `containers[0].env[1]: hides previous definition of "B", which may be dropped when using apply`
	quiet  = `{restartPolicy: %s, containers: [{name: c, image: i}]}`
)

// warned is what Kubernetes v1.37 warns of, kind by kind; docs/warnings.md has the same list in words.
var warned = []struct {
	kind string
	old  string // of an update; "": a create
	sub  string // of an update of a subresource
	doc  string
	want []string
}{
	{
		kind: "pods.v1",
		doc:  `{metadata: {name: a.b}, spec: ` + fmt.Sprintf(quiet, "Never") + `}`,
		want: []string{
			"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is " +
				"recommended: [must not contain dots]",
		},
	},
	{
		kind: "pods.v1",
		old:  podOf(`containers: [{name: c, image: i}]`),
		doc:  podOf(`containers: [{name: c, image: j, env: [{name: B}, {name: B}]}]`),
	},
	{
		kind: "pods.v1",
		doc: podOf(`nodeSelector: {node-role.kubernetes.io/master: "", app.kubernetes.io/created-by: x}, ` +
			`containers: [{name: c, image: i}]`),
		want: []string{
			"spec.nodeSelector[app.kubernetes.io/created-by]: deprecated since v1.9",
			`spec.nodeSelector[node-role.kubernetes.io/master]: use "node-role.kubernetes.io/control-plane" instead`,
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], affinity: {nodeAffinity: {` +
			`requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: ` +
			`[{key: beta.kubernetes.io/os, operator: In, values: [linux]}]}]}, ` +
			`preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: ` +
			`[{key: beta.kubernetes.io/arch, operator: In, values: [-a]}]}}]}}`),
		want: []string{
			"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]." +
				`matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use "kubernetes.io/os" instead`,
			"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0]." +
				`key: beta.kubernetes.io/arch is deprecated since v1.14; use "kubernetes.io/arch" instead`,
			"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0]." +
				"values[0]: -a is invalid, a valid label must be an empty string or consist of alphanumeric characters, " +
				"'-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  " +
				"or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], topologySpreadConstraints: [{maxSkew: 1, ` +
			`topologyKey: failure-domain.beta.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]`),
		want: []string{
			"spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since " +
				`v1.17; use "topology.kubernetes.io/zone" instead`,
			"spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], affinity: {podAffinity: {` +
			`requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: k}]}, podAntiAffinity: {` +
			`preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: k}}]}}`),
		want: []string{
			"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null " +
				"labelSelector results in matching no pod",
			"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm." +
				"labelSelector: a null labelSelector results in matching no pod",
		},
	},
	{
		kind: "pods.v1",
		doc: `{metadata: {name: x, annotations: {scheduler.alpha.kubernetes.io/critical-pod: "", ` +
			`security.alpha.kubernetes.io/sysctls: "", security.alpha.kubernetes.io/unsafe-sysctls: "", ` +
			`seccomp.security.alpha.kubernetes.io/pod: x, container.seccomp.security.alpha.kubernetes.io/c: x}}, ` +
			`spec: {containers: [{name: c, image: i}]}}`,
		want: []string{
			`metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the ` +
				`"priorityClassName" field instead`,
			`metadata.annotations[security.alpha.kubernetes.io/sysctls]: non-functional in v1.11+; use the "sysctls" field ` +
				`instead`,
			`metadata.annotations[security.alpha.kubernetes.io/unsafe-sysctls]: non-functional in v1.11+; use the ` +
				`"sysctls" field instead`,
			`metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the ` +
				`"seccompProfile" field instead`,
			`metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use the ` +
				`"seccompProfile" field instead`,
		},
	},
	{
		kind: "pods.v1",
		doc: `{metadata: {name: x, annotations: {container.apparmor.security.beta.kubernetes.io/c: runtime/default}}, ` +
			`spec: {containers: [{name: c, image: i}]}}`,
		want: []string{
			`metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the ` +
				`"appArmorProfile" field instead`,
		},
	},
	{
		kind: "pods.v1", // the annotation says what the pod's field says
		doc: `{metadata: {name: x, annotations: {container.apparmor.security.beta.kubernetes.io/c: runtime/default}}, ` +
			`spec: {securityContext: {appArmorProfile: {type: RuntimeDefault}}, containers: [{name: c, image: i}]}}`,
	},
	{
		kind: "pods.v1", // the container has a field of its own, which must say the same
		doc: `{metadata: {name: x, annotations: {container.apparmor.security.beta.kubernetes.io/c: runtime/default}}, ` +
			`spec: {containers: [{name: c, image: i, securityContext: {appArmorProfile: {type: RuntimeDefault}}}]}}`,
	},
	{
		kind: "podtemplates.v1", // it says something else
		doc: `{metadata: {name: x}, template: {metadata: {annotations: ` +
			`{container.apparmor.security.beta.kubernetes.io/c: unconfined}}, ` +
			`spec: {securityContext: {appArmorProfile: {type: RuntimeDefault}}, containers: [{name: c, image: i}]}}}`,
		want: []string{
			`template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use ` +
				`the "appArmorProfile" field instead`,
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], volumes: [{name: a, photonPersistentDisk: {pdID: x}}, ` +
			`{name: b, gitRepo: {repository: x}}, {name: c, scaleIO: {gateway: x}}, {name: d, flocker: {datasetName: x}}, ` +
			`{name: e, storageos: {volumeName: x}}, {name: f, quobyte: {registry: x}}, {name: g, glusterfs: {path: x}}, ` +
			`{name: h, cephfs: {monitors: [x]}}, {name: i, rbd: {monitors: [x]}}]`),
		want: []string{
			"spec.volumes[0].photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+",
			"spec.volumes[1].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
			"spec.volumes[2].scaleIO: deprecated in v1.16, non-functional in v1.22+",
			"spec.volumes[3].flocker: deprecated in v1.22, non-functional in v1.25+",
			"spec.volumes[4].storageOS: deprecated in v1.22, non-functional in v1.25+",
			"spec.volumes[5].quobyte: deprecated in v1.22, non-functional in v1.25+",
			"spec.volumes[6].glusterfs: deprecated in v1.25, non-functional in v1.26+",
			"spec.volumes[7].cephfs: deprecated in v1.28, non-functional in v1.31+",
			"spec.volumes[8].rbd: deprecated in v1.28, non-functional in v1.31+",
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], volumes: [{name: v, ephemeral: {volumeClaimTemplate: ` +
			`{spec: {resources: {requests: {storage: 1m}}}}}}]`),
		want: []string{
			"spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value " +
				`"1m" is invalid, must be an integer`,
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], volumes: [` +
			`{name: m, configMap: {name: m, items: [{key: a, path: dir}, {key: b, path: dir/file}]}}, ` +
			`{name: s, secret: {secretName: s, items: [{key: a, path: same}, {key: b, path: same}]}}, ` +
			`{name: d, downwardAPI: {items: [{path: a/}, {path: a}]}}, ` +
			`{name: p, projected: {sources: [{serviceAccountToken: {path: token}}, ` +
			`{configMap: {name: m, items: [{key: a, path: token/a}]}}, {}, ` +
			`{clusterTrustBundle: {name: b, path: certs}}, {podCertificate: {keyPath: certs}}]}}]`),
		want: []string{
			`volume "m" (ConfigMap "m"): overlapping paths: "dir/file" with "dir"`,
			`volume "s" (Secret "s"): overlapping paths: "same" with "same"`,
			`volume "d" (DownwardAPI): overlapping paths: "a" with "a"`,
			`volume "p" (Projected) has no sources provided`,
			`volume "p" (Projected): overlapping paths: "token/a" (ConfigMap "m") with "token" (ServiceAccountToken)`,
			`volume "p" (Projected): overlapping paths: "certs" (PodCertificate key) with "certs" (ClusterTrustBundle "b")`,
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], hostAliases: [{ip: 1.2.3.4}, {ip: 1.2.3.4}], ` +
			`imagePullSecrets: [{name: a}, {name: a}, {}]`),
		want: []string{
			`spec.hostAliases[1].ip: duplicate ip "1.2.3.4"`,
			`spec.imagePullSecrets[1].name: duplicate name "a"`,
			`spec.imagePullSecrets[2].name: invalid empty name ""`,
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`overhead: {memory: 1m}, containers: [{name: c, image: i, resources: {limits: {memory: 1m}, ` +
			`requests: {ephemeral-storage: 1500m}}}]`),
		want: []string{
			`spec.overhead[memory]: fractional byte value "1m" is invalid, must be an integer`,
			`spec.containers[0].resources.limits[memory]: fractional byte value "1m" is invalid, must be an integer`,
			`spec.containers[0].resources.requests[ephemeral-storage]: fractional byte value "1500m" is invalid, must be ` +
				`an integer`,
			// the limit is the request by default
			`spec.containers[0].resources.requests[memory]: fractional byte value "1m" is invalid, must be an integer`,
		},
	},
	{
		kind: "pods.v1",
		doc:  `{metadata: {name: x}, spec: ` + fmt.Sprintf(hiding, "Never") + `}`,
		want: []string{"spec." + hidden},
	},
	{
		kind: "pods.v1", // it builds on the earlier one
		doc:  podOf(`containers: [{name: c, image: i, env: [{name: B, value: "1"}, {name: B, value: "$(B)2"}]}]`),
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i, ports: [{name: http, containerPort: 80, hostIP: 1.2.3.4}, ` +
			`{containerPort: 80, hostPort: 80}]}, {name: d, image: i, ports: [{name: http, containerPort: 81}, ` +
			`{containerPort: 81}, {containerPort: 82, hostPort: 82}, {containerPort: 82, hostPort: 82, hostIP: 1.2.3.4}]}]`),
		want: []string{
			"spec.containers[0].ports[0]: hostIP set without hostPort: {Name:http HostPort:0 ContainerPort:80 " +
				"Protocol:TCP HostIP:1.2.3.4}",
			"spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
			"spec.containers[1].ports[1]: duplicate port definition with spec.containers[1].ports[0]",
			"spec.containers[1].ports[3]: dangerously ambiguous port definition with spec.containers[1].ports[2]",
			`spec.containers[1].ports[0]: duplicate port name "http" with spec.containers[0].ports[0], services and ` +
				"probes that select ports by name will use spec.containers[0].ports[0]",
		},
	},
	{
		kind: "pods.v1",
		doc: podOf(`containers: [{name: c, image: i}], dnsConfig: {nameservers: ["1.2.3.04"]}, ` +
			`hostAliases: [{ip: "2001:db8:0:0::1"}]`),
		want: []string{
			`spec.dnsConfig.nameservers[0]: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
			`spec.hostAliases[0].ip: IPv6 address "2001:db8:0:0::1" should be in RFC 5952 canonical format ("2001:db8::1")`,
		},
	},
	{
		kind: "podtemplates.v1",
		doc: `{metadata: {name: x}, template: {spec: {terminationGracePeriodSeconds: -1, ` +
			`containers: [{name: c, image: i}]}}}`,
		want: []string{
			"template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
		},
	},
	{
		kind: "pods.v1",
		sub:  "status",
		old:  podOf(`containers: [{name: c, image: i, env: [{name: B}, {name: B}]}]`),
		doc:  `{metadata: {name: x}, status: {podIPs: [{ip: "1.2.3.04"}], hostIPs: [{ip: "::ffff:1.2.3.4"}]}}`,
		want: []string{
			`status.podIPs[0].ip: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
			`status.hostIPs[0].ip: non-standard IP address "::ffff:1.2.3.4" is invalid: use "1.2.3.4"`,
		},
	},
	{
		kind: "jobs.v1",
		doc: `{metadata: {name: x}, spec: {completionMode: Indexed, completions: 100001, parallelism: 10001, template: ` +
			`{spec: ` + fmt.Sprintf(quiet, "Never") + `}}}`,
		want: []string{"spec: " + manyIndexes},
	},
	{
		kind: "cronjobs.v1",
		doc: `{metadata: {name: x}, spec: {schedule: "* * * * *", jobTemplate: {spec: {completionMode: Indexed, ` +
			`completions: 100001, parallelism: 10001, template: {spec: ` + fmt.Sprintf(quiet, "Never") + `}}}}}`,
		want: []string{"spec.jobTemplate.spec: " + manyIndexes},
	},
	{
		kind: "cronjobs.v1",
		old: `{metadata: {name: x}, spec: {schedule: "TZ=UTC * * * * *", jobTemplate: {spec: {template: {spec: ` +
			fmt.Sprintf(quiet, "Never") + `}}}}}`,
		doc: `{metadata: {name: x}, spec: {schedule: "TZ=UTC * * * * *", jobTemplate: {spec: {template: {spec: ` +
			fmt.Sprintf(quiet, "Never") + `}}}}}`,
		want: []string{
			"cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see " +
				"https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
		},
	},
	{
		kind: "statefulsets.v1",
		doc: `{metadata: {name: x}, spec: {revisionHistoryLimit: -1, template: {spec: ` + fmt.Sprintf(quiet, "Always") +
			`}, volumeClaimTemplates: [{spec: {resources: {limits: {storage: 1m}}}}]}}`,
		want: []string{
			`spec.volumeClaimTemplates[0].resources.limits[storage]: fractional byte value "1m" is invalid, must be an ` +
				`integer`,
			"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended",
		},
	},
	{
		kind: "statefulsets.v1",
		old:  `{metadata: {name: x}, spec: {template: {spec: ` + fmt.Sprintf(quiet, "Always") + `}}}`,
		doc: `{metadata: {name: x}, spec: {revisionHistoryLimit: -1, template: {spec: ` + fmt.Sprintf(quiet, "Always") +
			`}, volumeClaimTemplates: [{spec: {resources: {limits: {storage: 1m}}}}]}}`,
		want: []string{
			`spec.volumeClaimTemplates[0].Spec.resources.limits[storage]: fractional byte value "1m" is invalid, must be ` +
				`an integer`,
			"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended",
		},
	},
	{
		kind: "persistentvolumeclaims.v1",
		doc: `{metadata: {name: x, annotations: {volume.beta.kubernetes.io/storage-class: x}}, ` +
			`spec: {resources: {requests: {storage: 1m}}}}`,
		want: []string{
			`metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" ` +
				`attribute instead`,
			`spec.resources.requests[storage]: fractional byte value "1m" is invalid, must be an integer`,
		},
	},
	{
		kind: "persistentvolumes.v1",
		doc: `{metadata: {name: x, annotations: {volume.beta.kubernetes.io/storage-class: x, ` +
			`volume.beta.kubernetes.io/mount-options: x}}, spec: {persistentVolumeReclaimPolicy: Recycle, ` +
			`nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: beta.kubernetes.io/os, ` +
			`operator: In, values: [linux]}]}]}}}}`,
		want: []string{
			`metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" ` +
				`attribute instead`,
			`metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use "mountOptions" ` +
				`attribute instead`,
			"spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended " +
				"approach is to use dynamic provisioning.",
			"spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated " +
				`since v1.14; use "kubernetes.io/os" instead`,
		},
	},
	{
		kind: "persistentvolumes.v1",
		doc: `{metadata: {name: x}, spec: {cephfs: {monitors: [x]}, photonPersistentDisk: {pdID: x}, ` +
			`scaleIO: {gateway: x}, storageos: {volumeName: x}, glusterfs: {path: x}, rbd: {monitors: [x]}}}`,
		want: []string{
			"spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
			"spec.photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+",
			"spec.scaleIO: deprecated in v1.16, non-functional in v1.22+",
			"spec.storageOS: deprecated in v1.22, non-functional in v1.25+",
			"spec.glusterfs: deprecated in v1.25, non-functional in v1.26+",
			"spec.rbd: deprecated in v1.28, non-functional in v1.31+",
		},
	},
	{
		kind: "services.v1",
		doc: `{metadata: {name: x, annotations: {service.kubernetes.io/topology-aware-hints: auto}}, ` +
			`spec: {ports: [{port: 1}], externalIPs: [1.2.3.04], clusterIPs: [10.0.0.01], clusterIP: 10.0.0.01, ` +
			`loadBalancerIP: 1.2.3.04, loadBalancerSourceRanges: [10.0.0.1/8], externalName: x, ` +
			`trafficDistribution: PreferClose}}`,
		want: []string{
			"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use " +
				"service.kubernetes.io/topology-mode instead",
			`spec.clusterIPs[0]: non-standard IP address "10.0.0.01" is invalid: use "10.0.0.1"`,
			`spec.externalIPs[0]: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
			"spec.externalIPs is deprecated and may no longer be implemented in some clusters",
			`spec.loadBalancerIP: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
			`spec.loadBalancerSourceRanges[0]: CIDR value "10.0.0.1/8" is ambiguous in this context (should be ` +
				`"10.0.0.0/8" or "10.0.0.1/32"?)`,
			`spec.externalName is ignored when spec.type is not "ExternalName"`,
			`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`,
		},
	},
	{
		kind: "services.v1",
		doc: `{metadata: {name: x}, spec: {clusterIP: None, clusterIPs: [None], loadBalancerIP: 1.2.3.4, ` +
			`externalIPs: [1.2.3.4], sessionAffinity: ClientIP}}`,
		want: []string{
			"spec.loadBalancerIP is ignored for headless services",
			"spec.externalIPs is ignored for headless services",
			"spec.SessionAffinity is ignored for headless services",
		},
	},
	{
		kind: "services.v1",
		doc:  `{metadata: {name: x}, spec: {type: ExternalName, externalName: x, externalIPs: [1.2.3.4]}}`,
		want: []string{`spec.externalIPs is ignored when spec.type is "ExternalName"`},
	},
	{
		kind: "services.v1",
		sub:  "status",
		old:  `{metadata: {name: x}, spec: {ports: [{port: 1}], externalIPs: [1.2.3.4]}}`,
		doc:  `{metadata: {name: x}, status: {loadBalancer: {ingress: [{ip: 1.2.3.04}, {hostname: x}]}}}`,
		want: []string{
			`status.loadBalancer.ingress[0]: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
		},
	},
	{
		kind: "endpoints.v1",
		doc: `{metadata: {name: x}, subsets: [{addresses: [{ip: 1.2.3.04}], ` +
			`notReadyAddresses: [{ip: "2001:DB8::1"}]}]}`,
		want: []string{
			`subsets[0].addresses[0].ip: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
			`subsets[0].notReadyAddresses[0].ip: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ` +
				`("2001:db8::1")`,
		},
	},
	{
		kind: "endpoints.v1",
		doc: `{metadata: {name: x, labels: {endpoints.kubernetes.io/managed-by: endpoint-controller}}, ` +
			`subsets: [{addresses: [{ip: 1.2.3.04}]}]}`,
	},
	{
		kind: "endpointslices.v1",
		doc:  `{metadata: {name: x}, addressType: FQDN}`,
		want: []string{"spec.addressType: FQDN endpoints are deprecated"},
	},
	{
		kind: "endpointslices.v1",
		doc:  `{metadata: {name: x}, addressType: IPv4, endpoints: [{addresses: [1.2.3.04]}]}`,
		want: []string{
			`endpoints[0].addresses[0]: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
		},
	},
	{
		kind: "ingresses.v1",
		doc: `{metadata: {name: x, annotations: {kubernetes.io/ingress.class: x}}, ` +
			`spec: {defaultBackend: {service: {name: x, port: {number: 1}}}}}`,
		want: []string{
			`annotation "kubernetes.io/ingress.class" is deprecated, please use 'spec.ingressClassName' instead`,
		},
	},
	{
		kind: "ingresses.v1", // the field is there, too
		doc: `{metadata: {name: x, annotations: {kubernetes.io/ingress.class: x}}, ` +
			`spec: {ingressClassName: x, defaultBackend: {service: {name: x, port: {number: 1}}}}}`,
	},
	{
		kind: "ingresses.v1",
		sub:  "status",
		old:  `{metadata: {name: x}, spec: {defaultBackend: {service: {name: x, port: {number: 1}}}}}`,
		doc:  `{metadata: {name: x}, status: {loadBalancer: {ingress: [{ip: 1.2.3.04}]}}}`,
		want: []string{
			`status.loadBalancer.ingress[0]: non-standard IP address "1.2.3.04" is invalid: use "1.2.3.4"`,
		},
	},
	{
		kind: "networkpolicies.v1",
		doc: `{metadata: {name: x}, spec: {ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8, except: [10.1.0.00/16]}}]}], ` +
			`egress: [{to: [{}, {ipBlock: {cidr: "2001:db8:0::/64"}}]}]}}`,
		want: []string{
			`spec.ingress[0].from[0].ipBlock.cidr: CIDR value "10.0.0.1/8" is ambiguous in this context (should be ` +
				`"10.0.0.0/8" or "10.0.0.1/32"?)`,
			`spec.ingress[0].from[0].ipBlock.except[0]: non-standard CIDR value "10.1.0.00/16" is invalid: use ` +
				`"10.1.0.0/16"`,
			`spec.egress[0].to[1].ipBlock.cidr: IPv6 CIDR value "2001:db8:0::/64" should be in RFC 5952 canonical format ` +
				`("2001:db8::/64")`,
		},
	},
	{
		kind: "nodes.v1",
		doc:  `{metadata: {name: x}, spec: {externalID: x, podCIDRs: [10.0.0.00/24]}}`,
		want: []string{
			"spec.externalID: this field is deprecated, and is unused by Kubernetes",
			`spec.podCIDRs[0]: non-standard CIDR value "10.0.0.00/24" is invalid: use "10.0.0.0/24"`,
		},
	},
	{
		kind: "nodes.v1", // new nodes lose the field
		old:  `{metadata: {name: x}, spec: {configSource: {}}}`,
		doc:  `{metadata: {name: x}, spec: {configSource: {}}}`,
		want: []string{"spec.configSource: the feature is removed"},
	},
	{
		kind: "resourcequotas.v1",
		doc: `{metadata: {name: x}, spec: {hard: {requests.memory: 2Gi, limits.memory: 1Gi, cpu: "2", limits.cpu: "1", ` +
			`requests.ephemeral-storage: 1Gi, limits.ephemeral-storage: 1Gi}}}`,
		want: []string{
			"ResourceQuota cpu (2) should be less than limits.cpu (1)",
			"ResourceQuota requests.memory (2Gi) should be less than limits.memory (1Gi)",
		},
	},
	{
		kind: "resourcequotas.v1",
		old:  `{metadata: {name: x}, spec: {hard: {requests.memory: 1Gi, limits.memory: 1Gi}}}`,
		doc:  `{metadata: {name: x}, spec: {hard: {requests.memory: 2Gi, limits.memory: 1Gi}}}`,
	},
	{
		kind: "secrets.v1",
		doc:  `{metadata: {name: x}, type: kubernetes.io/tls, data: {tls.crt: eA==, tls.key: eA==}}`,
		want: []string{"tls: failed to find any PEM data in certificate input"},
	},
	{
		kind: "serviceaccounts.v1",
		doc:  `{metadata: {name: x, annotations: {kubernetes.io/enforce-mountable-secrets: "true"}}}`,
		want: []string{mountable},
	},
	{
		kind: "serviceaccounts.v1",
		old:  `{metadata: {name: x}}`,
		doc:  `{metadata: {name: x, annotations: {kubernetes.io/enforce-mountable-secrets: "true"}}}`,
		want: []string{mountable},
	},
	{
		kind: "serviceaccounts.v1", // it had the annotation already
		old:  `{metadata: {name: x, annotations: {kubernetes.io/enforce-mountable-secrets: "false"}}}`,
		doc:  `{metadata: {name: x, annotations: {kubernetes.io/enforce-mountable-secrets: "true"}}}`,
	},
	{
		kind: "storageclasses.v1",
		doc: `{metadata: {name: x}, provisioner: x, allowedTopologies: [{matchLabelExpressions: ` +
			`[{key: beta.kubernetes.io/arch, values: [x]}]}]}`,
		want: []string{
			`allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.14; use "kubernetes.io/arch" instead`,
		},
	},
	{
		kind: "csistoragecapacities.v1",
		doc: `{metadata: {name: x}, storageClassName: x, nodeTopology: {matchLabels: {beta.kubernetes.io/os: linux}, ` +
			`matchExpressions: [{key: beta.kubernetes.io/arch, operator: Exists}]}}`,
		want: []string{
			"nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use " +
				`"kubernetes.io/arch" instead`,
			`nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use "kubernetes.io/os" instead`,
		},
	},
	{
		kind: "csidrivers.v1",
		doc:  `{metadata: {name: x}, spec: {tokenRequests: [{audience: x}]}}`,
		want: []string{
			"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent " +
				"possible logging of tokens in volume attributes",
		},
	},
	{
		kind: "runtimeclasses.v1",
		doc: `{metadata: {name: x}, handler: x, scheduling: {nodeSelector: ` +
			`{beta.kubernetes.io/instance-type: x, scheduler.alpha.kubernetes.io/preferAvoidPods: x}}}`,
		want: []string{
			`scheduling.nodeSelector: deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
			"scheduling.nodeSelector: deprecated since v1.22; use Taints and Tolerations instead",
		},
	},
	{
		kind: "resourceslices.v1",
		doc:  `{metadata: {name: x}, spec: {driver: Gpu.example.com, nodeName: n, pool: {name: p, resourceSliceCount: 1}}}`,
		want: []string{
			`spec.driver: driver names should be lowercase; "Gpu.example.com" contains uppercase characters`,
		},
	},
	{
		kind: "customresourcedefinitions.v1",
		doc: schemaOf(`{a: {type: string, format: odd}, b: {type: array, x-kubernetes-list-type: set, ` +
			`items: {type: object}}}`),
		want: []string{
			`unrecognized format "odd"`,
			`x-kubernetes-list-type: set for items of type "object" is not supported by server-side apply or CEL ` +
				"validation rules",
		},
	},
	{
		kind: "customresourcedefinitions.v1", // it had them before
		old:  schemaOf(`{a: {type: string, format: odd}}`),
		doc:  schemaOf(`{a: {type: string, format: odd}, b: {type: string}}`),
	},
	{
		kind: "validatingwebhookconfigurations.v1",
		doc: `{metadata: {name: x}, webhooks: [{name: a.b.c, rules: [{apiGroups: [authorization.k8s.io], ` +
			`apiVersions: [v1], resources: [subjectaccessreviews], operations: [CREATE]}]}]}`,
		want: []string{
			"webhooks[0].rules[0]: subjectaccessreviews.authorization.k8s.io is excluded from admission webhooks; this " +
				"rule will have no effect",
		},
	},
	{
		kind: "mutatingwebhookconfigurations.v1",
		doc: `{metadata: {name: x}, webhooks: [{name: a.b.c, rules: [{apiGroups: [authentication.k8s.io], ` +
			`apiVersions: [v1], resources: [tokenreviews], operations: [CREATE]}]}]}`,
		want: []string{
			"webhooks[0].rules[0]: tokenreviews.authentication.k8s.io is excluded from admission webhooks; this rule " +
				"will have no effect",
		},
	},
}

const (
	manyIndexes = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, " +
		"Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
	mountable = "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate " +
		"namespaces to isolate access to mounted secrets"
)

func podOf(spec string) string {
	return `{metadata: {name: x}, spec: {` + spec + `}}`
}

func schemaOf(properties string) string {
	return `{metadata: {name: as.example.com}, spec: {group: example.com, scope: Cluster, names: {plural: as, kind: A}, ` +
		`versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: ` +
		properties + `}}}]}}`
}

// TestWarned: what Kubernetes v1.37 warns of, in its words.
func TestWarned(t *testing.T) {
	for _, c := range warned {
		k := named(t, c.kind)
		if got := warningsOf(t, k, c.old, c.sub, c.doc); !slices.Equal(sorted(got), sorted(c.want)) {
			t.Errorf("%s, %q then %s: got\n%s\nwant\n%s", c.kind, c.old, c.doc, strings.Join(got, "\n"),
				strings.Join(c.want, "\n"))
		}
	}
}

// warningsOf are those of a create or, with old, of an update of the object or of its subresource sub.
func warningsOf(t *testing.T, k *kind.Kind, old, sub, doc string) []string {
	t.Helper()
	if old == "" {
		obj := k.New()
		readDoc(t, doc, obj)
		if k.Namespaced {
			obj.SetNamespace("default")
		}
		early := kindtest.Create(k, obj)
		return append(early, k.Warnings(obj, nil)...)
	}
	before := k.New()
	readDoc(t, old, before)
	k.Default(before)
	after := k.New()
	readDoc(t, doc, after)
	k.Default(after)
	if sub != "" {
		k.Subs[sub].PrepareUpdate(after, before)
		return k.Subs[sub].Warnings(after)
	}
	k.PrepareUpdate(after, before)
	return k.Warnings(after, before)
}

func sorted(list []string) []string {
	return slices.Sorted(slices.Values(list))
}

// templates are the kinds that make pods, and where their templates are.
var templates = []struct{ kind, path, restart, doc string }{
	{"deployments.v1", "spec.template", "Always", `{metadata: {name: %q}, spec: {template: {spec: %s}}}`},
	{"replicasets.v1", "spec.template", "Always", `{metadata: {name: %q}, spec: {template: {spec: %s}}}`},
	{"replicationcontrollers.v1", "spec.template", "Always", `{metadata: {name: %q}, spec: {template: {spec: %s}}}`},
	{"daemonsets.v1", "spec.template", "Always", `{metadata: {name: %q}, spec: {template: {spec: %s}}}`},
	{"statefulsets.v1", "spec.template", "Always", `{metadata: {name: %q}, spec: {template: {spec: %s}}}`},
	{"podtemplates.v1", "template", "Always", `{metadata: {name: %q}, template: {spec: %s}}`},
	{"jobs.v1", "spec.template", "Never", `{metadata: {name: %q}, spec: {template: {spec: %s}}}`},
	{
		"cronjobs.v1", "spec.jobTemplate.spec.template", "Never",
		`{metadata: {name: %q}, spec: {schedule: "* * * * *", jobTemplate: {spec: {template: {spec: %s}}}}}`,
	},
}

// TestTemplatesAreWarned: each kind that makes pods says at a create what a pod would be warned of, and at an update
// when the template is new.
func TestTemplatesAreWarned(t *testing.T) {
	for _, c := range templates {
		k := named(t, c.kind)
		calm := fmt.Sprintf(c.doc, "x", fmt.Sprintf(quiet, c.restart))
		loud := fmt.Sprintf(c.doc, "x", fmt.Sprintf(hiding, c.restart))
		want := []string{c.path + ".spec." + hidden}
		for what, row := range map[string]struct {
			old, doc string
			want     []string
		}{
			"create":    {"", loud, want},
			"update":    {calm, loud, want},
			"unchanged": {loud, loud, nil},
			"undone":    {loud, calm, nil},
		} {
			if got := warningsOf(t, k, row.old, "", row.doc); !slices.Equal(got, row.want) {
				t.Errorf("%s, %s: got %q, want %q", c.kind, what, got, row.want)
			}
		}
	}
}

// TestHostNamesAreWarned: names of objects that name pods should be labels; not those of kinds whose pods get other
// names, and not at updates.
func TestHostNamesAreWarned(t *testing.T) {
	for _, c := range templates {
		k := named(t, c.kind)
		doc := fmt.Sprintf(c.doc, "a.b", fmt.Sprintf(quiet, c.restart))
		want := []string{"metadata.name: " + hostAdvice}
		if c.kind == "daemonsets.v1" || c.kind == "statefulsets.v1" || c.kind == "podtemplates.v1" {
			want = nil
		}
		if got := warningsOf(t, k, "", "", doc); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", c.kind, got, want)
		}
		if got := warningsOf(t, k, doc, "", doc); len(got) > 0 {
			t.Errorf("%s, at an update: got %q", c.kind, got)
		}
	}
}

// TestDaemonSetSpecIsNotItsTemplate: a DaemonSet's update is about its template, other kinds' about all of the spec.
func TestDaemonSetSpecIsNotItsTemplate(t *testing.T) {
	for name, want := range map[string]int{"daemonsets.v1": 0, "deployments.v1": 1} {
		doc := `{metadata: {name: x}, spec: {minReadySeconds: %d, template: {spec: ` + fmt.Sprintf(hiding, "Always") + `}}}`
		if got := warningsOf(t, named(t, name), fmt.Sprintf(doc, 1), "", fmt.Sprintf(doc, 2)); len(got) != want {
			t.Errorf("%s: got %q, want %d", name, got, want)
		}
	}
}

// TestReservedNamesAreWarned: names that manifests on the server have are refused at creates; objects that had them
// before are warned, policies also at their status.
func TestReservedNamesAreWarned(t *testing.T) {
	want := []string{
		`metadata.name: names ending with ".static.k8s.io" are reserved for static manifest-based configurations and ` +
			"cannot be managed via the API",
	}
	const doc = `{metadata: {name: x.static.k8s.io}}`
	for _, name := range []string{
		"validatingwebhookconfigurations.v1", "mutatingwebhookconfigurations.v1", "validatingadmissionpolicies.v1",
		"validatingadmissionpolicybindings.v1", "mutatingadmissionpolicies.v1", "mutatingadmissionpolicybindings.v1",
	} {
		if got := warningsOf(t, named(t, name), doc, "", doc); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := warningsOf(t, named(t, "validatingadmissionpolicies.v1"), doc, "status", doc); !slices.Equal(got, want) {
		t.Errorf("a policy's status: got %q, want %q", got, want)
	}
}

// lifecycle is what types say of their versions.
type lifecycle interface {
	APILifecycleDeprecated() (major, minor int)
}

// TestDeprecatedVersionsAreWarned: every request for a version that is deprecated by v1.37 is warned, and none for
// another one.
func TestDeprecatedVersionsAreWarned(t *testing.T) {
	found := 0
	for _, row := range Table(gates.All()) {
		want := ""
		obj := row.Kind.New()
		if old, ok := obj.(lifecycle); ok {
			if major, minor := old.APILifecycleDeprecated(); major == 1 && minor <= 37 {
				gvk := row.Kind.GVK()
				want = fmt.Sprintf("%s %s is deprecated in v1.%d+", gvk.GroupVersion(), gvk.Kind, minor)
				found++
			}
		}
		if next, ok := obj.(interface {
			APILifecycleReplacement() schema.GroupVersionKind
		}); ok && want != "" {
			gvk := next.APILifecycleReplacement()
			want += fmt.Sprintf("; use %s %s", gvk.GroupVersion(), gvk.Kind)
		}
		if row.Deprecated != want {
			t.Errorf("%s: got %q, want %q", row.Kind.Resource, row.Deprecated, want)
		}
	}
	if found == 0 {
		t.Error("no version is deprecated, want Endpoints and ComponentStatus at least")
	}
}

// readDoc reads YAML into obj.
func readDoc(t *testing.T, doc string, obj any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
		t.Fatal(err)
	}
}

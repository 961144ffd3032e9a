// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	localvolumenames "keelson/api/core/localvolume"
	"keelson/api/gates"
	"keelson/controllers/attachdetach"
	"keelson/controllers/bootstrap"
	"keelson/controllers/certificates"
	"keelson/controllers/clusterroleaggregation"
	"keelson/controllers/cronjob"
	"keelson/controllers/daemonset"
	"keelson/controllers/deployment"
	"keelson/controllers/devicetainteviction"
	"keelson/controllers/disruption"
	"keelson/controllers/endpoints"
	"keelson/controllers/endpointslice"
	"keelson/controllers/endpointslicemirroring"
	"keelson/controllers/ephemeral"
	"keelson/controllers/expand"
	"keelson/controllers/framework"
	"keelson/controllers/garbage"
	"keelson/controllers/job"
	"keelson/controllers/legacytokens"
	"keelson/controllers/localvolume"
	"keelson/controllers/namespace"
	"keelson/controllers/nodeipam"
	"keelson/controllers/nodelifecycle"
	"keelson/controllers/persistentvolume"
	"keelson/controllers/podautoscaler"
	"keelson/controllers/podgc"
	"keelson/controllers/podgroupprotection"
	"keelson/controllers/policystatus"
	"keelson/controllers/pvcprotection"
	"keelson/controllers/pvprotection"
	"keelson/controllers/replicaset"
	"keelson/controllers/replicationcontroller"
	"keelson/controllers/resourceclaim"
	"keelson/controllers/resourcequota"
	"keelson/controllers/rootca"
	"keelson/controllers/serviceaccount"
	"keelson/controllers/servicecidr"
	"keelson/controllers/servicelb"
	"keelson/controllers/statefulset"
	"keelson/controllers/storageversionmigrator"
	"keelson/controllers/tainteviction"
	"keelson/controllers/tokens"
	"keelson/controllers/ttl"
	"keelson/controllers/ttlafterfinished"
	"keelson/controllers/vacprotection"
)

// row is one controller.
type row struct {
	// name is the name for --controllers: kube-controller-manager's.
	name string
	// alias is an older name that --controllers accepts; may be empty.
	alias string
	// account is its service account, and its name in logs, metrics and events. Empty: the name.
	account string
	// source is its name in events. Empty: the account.
	source string
	// queue is its name in the workqueue_* metrics and in messages: that of kube-controller-manager's queue, if it has
	// one.
	queue string
	// useManagerIdentity controllers work as system:kube-controller-manager, whose rights Kubernetes gives to no
	// service account.
	useManagerIdentity bool
	// offByDefault controllers run only when --controllers names them.
	offByDefault bool
	// gate reports whether the controller's resource is served; nil: always.
	gate func(gates.On) bool
	// workers is the number of concurrent syncs, framework.Env.Workers.
	workers int
	// syncs X: the flag --concurrent-X-syncs sets workers. Two rows with the same X share the flag and must have the
	// same workers.
	syncs string
	build func(env *framework.Env, cfg Config) (framework.Controller, error)
}

// table lists all controllers.
var table = []row{
	{
		name:    "replicationcontroller-controller",
		queue:   "replicationmanager",
		alias:   "replicationcontroller",
		account: "replication-controller",
		workers: 5,
		syncs:   "rc",
		build:   withoutConfig(replicationcontroller.New),
	},
	{
		name:    "statefulset-controller",
		queue:   "statefulset",
		alias:   "statefulset",
		workers: 5,
		syncs:   "statefulset",
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return statefulset.New(env, cfg.Metrics.statefulSet)
		},
	},
	{
		name:    "daemonset-controller",
		queue:   "daemonset",
		alias:   "daemonset",
		account: "daemon-set-controller",
		source:  "daemonset-controller",
		workers: 2,
		syncs:   "daemonset",
		build:   withoutConfig(daemonset.New),
	},
	{
		name:    "replicaset-controller",
		queue:   "replicaset",
		alias:   "replicaset",
		workers: 5,
		syncs:   "replicaset",
		build:   withoutConfig(replicaset.New),
	},
	{
		name:    "deployment-controller",
		queue:   "deployment",
		alias:   "deployment",
		workers: 5,
		syncs:   "deployment",
		build:   withoutConfig(deployment.New),
	},
	{
		name:    "job-controller",
		queue:   "job",
		alias:   "job",
		workers: 5,
		syncs:   "job",
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return job.New(env, cfg.Metrics.job)
		},
	},
	{
		name:    "endpointslice-controller",
		queue:   "endpoint_slice",
		alias:   "endpointslice",
		workers: 5,
		syncs:   "service-endpoint",
		build:   withoutConfig(endpointslice.New),
	},
	{
		name:    "endpoints-controller",
		queue:   "endpoint",
		alias:   "endpoint",
		account: "endpoint-controller",
		workers: 5,
		syncs:   "endpoint",
		build:   withoutConfig(endpoints.New),
	},
	{
		name:    "endpointslice-mirroring-controller",
		queue:   "endpoint_slice_mirroring",
		alias:   "endpointslicemirroring",
		account: "endpointslicemirroring-controller",
		workers: 5,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return endpointslicemirroring.New(env, cfg.Metrics.mirroring)
		},
	},
	{
		name:    "cronjob-controller",
		queue:   "cronjob",
		alias:   "cronjob",
		workers: 5,
		syncs:   "cron-job",
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return cronjob.New(env, cfg.Metrics.cronJob)
		},
	},
	{
		name:    "ttl-after-finished-controller",
		queue:   "ttl_jobs_to_delete",
		alias:   "ttl-after-finished",
		workers: 5,
		syncs:   "ttl-after-finished",
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return ttlafterfinished.New(env, cfg.Metrics.ttlAfterFinished)
		},
	},
	{
		name:    "garbage-collector-controller",
		queue:   "garbage_collector_attempt_to_delete",
		alias:   "garbagecollector",
		account: "generic-garbage-collector",
		workers: 20,
		syncs:   "gc",
		build:   withoutConfig(garbage.New),
	},
	{
		name:    "namespace-controller",
		queue:   "namespace",
		alias:   "namespace",
		workers: 10,
		syncs:   "namespace",
		build:   withoutConfig(namespace.New),
	},
	{
		name:    "serviceaccount-controller",
		queue:   "serviceaccount",
		alias:   "serviceaccount",
		account: "service-account-controller",
		workers: 1,
		build:   withoutConfig(serviceaccount.New),
	},
	{
		name:    "root-ca-certificate-publisher-controller",
		queue:   "root_ca_cert_publisher",
		alias:   "root-ca-cert-publisher",
		account: "root-ca-cert-publisher",
		workers: 1,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return rootca.New(env, cfg.RootCA)
		},
	},
	{
		name:    "pod-garbage-collector-controller",
		queue:   "orphaned_pods_nodes",
		alias:   "podgc",
		account: "pod-garbage-collector",
		workers: 2,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return podgc.New(env, cfg.TerminatedPods, cfg.Metrics.podGC)
		},
	},
	{
		name:    "node-lifecycle-controller",
		queue:   "node_lifecycle_controller",
		alias:   "nodelifecycle",
		account: "node-controller",
		workers: 4,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return nodelifecycle.New(env, cfg.Nodes, cfg.Metrics.nodeLifecycle)
		},
	},
	{
		name:    "node-ipam-controller",
		queue:   "node",
		alias:   "nodeipam",
		account: "node-controller",
		workers: 4,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return nodeipam.New(env, cfg.PodRanges)
		},
	},
	{
		name:    "ttl-controller",
		queue:   "ttlcontroller",
		alias:   "ttl",
		workers: 5,
		build:   withoutConfig(ttl.New),
	},
	{
		name:    "taint-eviction-controller",
		queue:   "noexec_taint_pod",
		workers: 8,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return tainteviction.New(env, cfg.Metrics.taintEviction)
		},
	},
	{
		name:    "device-taint-eviction-controller",
		queue:   "device_taint_eviction",
		workers: 8,
		build:   withoutConfig(devicetainteviction.New),
	},
	{
		name:    "disruption-controller",
		queue:   "disruption",
		alias:   "disruption",
		workers: 4,
		syncs:   "disruption",
		build:   withoutConfig(disruption.New),
	},
	{
		name:    "resourcequota-controller",
		queue:   "resourcequota_primary",
		alias:   "resourcequota",
		workers: 5,
		syncs:   "resource-quota",
		build:   withoutConfig(resourcequota.New),
	},
	{
		name:    "clusterrole-aggregation-controller",
		queue:   "ClusterRoleAggregator",
		alias:   "clusterrole-aggregation",
		workers: 1,
		build:   withoutConfig(clusterroleaggregation.New),
	},
	{
		name:    "horizontal-pod-autoscaler-controller",
		queue:   "horizontalpodautoscaler",
		alias:   "horizontalpodautoscaling",
		account: "horizontal-pod-autoscaler",
		workers: 5,
		syncs:   "horizontal-pod-autoscaler",
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return podautoscaler.New(env, cfg.Autoscaling, cfg.Metrics.podAutoscaler)
		},
	},
	{
		name:    "service-lb-controller",
		queue:   "service",
		alias:   "service",
		account: "service-controller",
		workers: 1,
		syncs:   "service",
		build:   withoutConfig(servicelb.New),
	},
	{
		name:    "service-cidr-controller",
		queue:   "ipaddresses",
		account: "service-cidrs-controller",
		workers: 1,
		build:   withoutConfig(servicecidr.New),
	},
	{
		name:    "certificatesigningrequest-approving-controller",
		queue:   "csrapproving",
		alias:   "csrapproving",
		account: "certificate-controller",
		workers: 2,
		build:   certificate(certificates.Approve),
	},
	{
		name:    "certificatesigningrequest-signing-controller",
		queue:   "csrsigning",
		alias:   "csrsigning",
		account: "certificate-controller",
		workers: 2,
		build:   certificate(certificates.Sign),
	},
	{
		name:    "certificatesigningrequest-cleaner-controller",
		queue:   "csrcleaner",
		alias:   "csrcleaner",
		account: "certificate-controller",
		workers: 1,
		build:   certificate(certificates.Clean),
	},
	{
		name:               "serviceaccount-token-controller",
		queue:              "serviceaccount_tokens_service",
		alias:              "serviceaccount-token",
		useManagerIdentity: true,
		workers:            5,
		syncs:              "serviceaccount-token",
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return tokens.New(env, cfg.TokenKey, cfg.RootCA)
		},
	},
	{
		name:    "legacy-serviceaccount-token-cleaner-controller",
		queue:   "legacy_token_cleaner",
		account: "legacy-service-account-token-cleaner",
		workers: 1,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return legacytokens.New(env, cfg.Clients("").Interface, cfg.LegacyTokenPeriod)
		},
	},
	{
		name:    "bootstrap-signer-controller",
		queue:   "bootstrap_signer_queue",
		alias:   "bootstrapsigner",
		account: "bootstrap-signer",
		workers: 1,
		build:   withoutConfig(bootstrap.NewSigner),
	},
	{
		name:    "token-cleaner-controller",
		queue:   "token_cleaner",
		alias:   "tokencleaner",
		account: "token-cleaner",
		workers: 1,
		build:   withoutConfig(bootstrap.NewCleaner),
	},
	{
		name:    "persistentvolume-binder-controller",
		queue:   "claims",
		alias:   "persistentvolume-binder",
		account: "persistent-volume-binder",
		source:  "persistentvolume-controller",
		workers: 8,
		build:   withoutConfig(persistentvolume.New),
	},
	{
		name:    "local-volume-provisioner-controller",
		queue:   "local_volume_provisioner",
		alias:   "local-volume-provisioner",
		account: "local-volume-provisioner",
		source:  localvolumenames.Provisioner,
		workers: 4,
		build:   withoutConfig(localvolume.New),
	},
	{
		name:    "persistentvolume-attach-detach-controller",
		queue:   "attachdetach",
		alias:   "attachdetach",
		account: "attachdetach-controller",
		workers: 10,
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return attachdetach.New(env, cfg.Attach, cfg.Metrics.attachDetach)
		},
	},
	{
		name:    "persistentvolume-expander-controller",
		queue:   "volume_expand",
		alias:   "persistentvolume-expander",
		account: "expand-controller",
		source:  "volume_expand",
		workers: 1,
		build:   withoutConfig(expand.New),
	},
	{
		name:    "ephemeral-volume-controller",
		queue:   "ephemeral_volume",
		alias:   "ephemeral-volume",
		source:  "ephemeral_volume",
		workers: 5,
		syncs:   "ephemeralvolume",
		build:   withoutConfig(ephemeral.New),
	},
	{
		name:    "resourceclaim-controller",
		queue:   "resource_claim",
		alias:   "resource-claim-controller",
		account: "resource-claim-controller",
		source:  "resource_claim",
		workers: 10,
		syncs:   "resourceclaim",
		build: func(env *framework.Env, cfg Config) (framework.Controller, error) {
			return resourceclaim.New(env, cfg.Metrics.claims)
		},
	},
	{
		name:    "persistentvolumeclaim-protection-controller",
		queue:   "pvcprotection",
		alias:   "pvc-protection",
		account: "pvc-protection-controller",
		workers: 2,
		build:   withoutConfig(pvcprotection.New),
	},
	{
		name:    "persistentvolume-protection-controller",
		queue:   "pvprotection",
		alias:   "pv-protection",
		account: "pv-protection-controller",
		workers: 1,
		build:   withoutConfig(pvprotection.New),
	},
	{
		name:    "volumeattributesclass-protection-controller",
		queue:   "vacprotection",
		workers: 1,
		build:   withoutConfig(vacprotection.New),
	},
	{
		name:    "podgroup-protection-controller",
		queue:   "podgroupprotection",
		gate:    func(on gates.On) bool { return on.GenericWorkload },
		workers: 1,
		build:   withoutConfig(podgroupprotection.New),
	},
	{
		name:    "storage-version-migrator-controller",
		queue:   "storage_version_migrator",
		workers: 1,
		build:   withoutConfig(storageversionmigrator.New),
	},
	{
		name:    "validatingadmissionpolicy-status-controller",
		queue:   "validatingadmissionpolicy-status",
		workers: 5,
		syncs:   "validating-admission-policy-status",
		build:   withoutConfig(policystatus.New),
	},
}

// withoutConfig adapts a constructor without configuration.
func withoutConfig(f func(*framework.Env) (framework.Controller, error)) func(
	*framework.Env, Config,
) (framework.Controller, error) {
	return func(env *framework.Env, _ Config) (framework.Controller, error) { return f(env) }
}

func certificate(t certificates.Task) func(*framework.Env, Config) (framework.Controller, error) {
	return func(env *framework.Env, cfg Config) (framework.Controller, error) {
		return certificates.New(env, certificates.Signers{Authorities: cfg.Authorities, Duration: cfg.CertificateLife},
			t)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"keelson/cluster/credentials"
	"keelson/controllers/certificates"
	"keelson/controllers/nodeipam"
	"keelson/controllers/podautoscaler"
	schedulerconfig "keelson/scheduler/config"
)

// settings are a component's configuration under Kubernetes' field names. Fields without effect in Keelson are left
// out.
type settings = map[string]any

// configz serves a component's configuration at /configz, under the name that Kubernetes' component uses.
func configz(name string, of settings) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		b, err := json.Marshal(settings{name: of})
		if err != nil {
			http.Error(w, fmt.Sprintf("error: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(b) // the client may be gone
	}
}

func (o ElectionOptions) configz(lease string) settings {
	e := o.election(lease)
	return settings{
		"LeaderElect":       !o.Off,
		"LeaseDuration":     e.Lease.String(),
		"RenewDeadline":     e.Deadline.String(),
		"RetryPeriod":       e.Retry.String(),
		"ResourceLock":      cmp.Or(o.Lock, "leases"),
		"ResourceName":      e.Name,
		"ResourceNamespace": cmp.Or(e.Namespace, "kube-system"),
	}
}

// schedulerConfigz returns a KubeSchedulerConfiguration.
func schedulerConfigz(role RoleConfig) (string, settings) {
	_, configuration, err := role.Scheduler.read()
	if err != nil {
		configuration = schedulerconfig.Default() // alone has reported the error
	}
	var profiles []settings
	for _, p := range configuration.Profiles {
		profiles = append(profiles, settings{
			"SchedulerName":            p.SchedulerName,
			"PercentageOfNodesToScore": p.PercentageOfNodesToScore,
		})
	}
	return "componentconfig", settings{
		"LeaderElection": role.Election.configz(schedulerLease),
		"ClientConnection": settings{
			"Kubeconfig":  role.kubeconfig("scheduler"),
			"ContentType": "application/vnd.kubernetes.protobuf",
		},
		"Profiles":                 profiles,
		"PercentageOfNodesToScore": *configuration.PercentageOfNodesToScore,
		"PodInitialBackoffSeconds": *configuration.PodInitialBackoffSeconds,
		"PodMaxBackoffSeconds":     *configuration.PodMaxBackoffSeconds,
		"Parallelism":              *configuration.Parallelism,
		"EnableProfiling":          !role.Serving.NoProfiling,
	}
}

// controllersConfigz returns a KubeControllerManagerConfiguration.
func controllersConfigz(role RoleConfig) (string, settings) {
	options := role.Controllers.Default()
	out := settings{
		"Generic": settings{
			"Port":           role.Serving.Port,
			"Address":        role.Serving.Bind.String(),
			"Controllers":    options.Controllers,
			"LeaderElection": role.Election.configz(controllersLease),
			"ClientConnection": settings{
				"Kubeconfig":  role.kubeconfig("controller-manager"),
				"ContentType": "application/vnd.kubernetes.protobuf",
			},
			"Debugging": settings{"EnableProfiling": !role.Serving.NoProfiling},
		},
		"KubeCloudShared": settings{
			"AllocateNodeCIDRs": options.PodRanges.Allocate == nodeipam.Allocate ||
				options.PodRanges.Allocate != nodeipam.AllocateNothing && len(options.PodRanges.Cluster) > 0,
			"ClusterCIDR":                  (*prefixes)(&options.PodRanges.Cluster).String(),
			"UseServiceAccountCredentials": true,
		},
		"CSRSigningController": signingConfigz(role.Signing, options.CertificateLife),
		"SAController": settings{
			"ServiceAccountKeyFile": role.Signing.TokenKeyFile,
			"RootCAFile":            role.Signing.RootCAFile,
		},
		"AttachDetachController": settings{
			"DisableAttachDetachReconcilerSync": true,
			"DisableForceDetachOnTimeout":       options.Attach.NoForceDetach,
		},
		"LegacySATokenCleaner": settings{"CleanUpPeriod": cmp.Or(options.LegacyTokenPeriod, 365*24*time.Hour).String()},
		"NodeIPAMController": settings{
			"ServiceCIDR":          (*prefixes)(&options.PodRanges.Reserved).String(),
			"NodeCIDRMaskSizeIPv4": cmp.Or(options.PodRanges.Bits4, 24),
			"NodeCIDRMaskSizeIPv6": cmp.Or(options.PodRanges.Bits6, 64),
		},
		"NodeLifecycleController": settings{
			"NodeEvictionRate":          max(0, options.Nodes.Rate),
			"SecondaryNodeEvictionRate": max(0, options.Nodes.SecondaryRate),
			"NodeStartupGracePeriod":    options.Nodes.StartupGrace.String(),
			"NodeMonitorGracePeriod":    options.Nodes.Grace.String(),
			"LargeClusterSizeThreshold": max(0, options.Nodes.LargeClusterThreshold),
			"UnhealthyZoneThreshold":    options.Nodes.UnhealthyThreshold,
		},
		"PodGCController": settings{"TerminatedPodGCThreshold": max(0, options.TerminatedPods)},
		"HPAController":   autoscalingConfigz(options.Autoscaling),
	}
	concurrencyConfigz(out, options)
	return "kubecontrollermanager.config.k8s.io", out
}

func autoscalingConfigz(a *podautoscaler.Config) settings {
	c := podautoscaler.Defaults()
	if a != nil {
		c = *a
	}
	return settings{
		"HorizontalPodAutoscalerSyncPeriod":                   c.SyncPeriod.String(),
		"HorizontalPodAutoscalerDownscaleStabilizationWindow": c.DownscaleStabilization.String(),
		"HorizontalPodAutoscalerTolerance":                    c.Tolerance,
		"HorizontalPodAutoscalerCPUInitializationPeriod":      c.CPUInitialization.String(),
		"HorizontalPodAutoscalerInitialReadinessDelay":        c.InitialReadinessDelay.String(),
	}
}

// concurrencyConfigz adds the number of workers of each controller, keyed by what follows --concurrent- in the flag's
// name.
func concurrencyConfigz(out settings, options ControllerOptions) {
	for _, info := range KnownControllers() {
		at, ok := map[string][2]string{
			"cron-job":                  {"CronJobController", "ConcurrentCronJobSyncs"},
			"daemonset":                 {"DaemonSetController", "ConcurrentDaemonSetSyncs"},
			"deployment":                {"DeploymentController", "ConcurrentDeploymentSyncs"},
			"endpoint":                  {"EndpointController", "ConcurrentEndpointSyncs"},
			"ephemeralvolume":           {"EphemeralVolumeController", "ConcurrentEphemeralVolumeSyncs"},
			"gc":                        {"GarbageCollectorController", "ConcurrentGCSyncs"},
			"horizontal-pod-autoscaler": {"HPAController", "ConcurrentHorizontalPodAutoscalerSyncs"},
			"job":                       {"JobController", "ConcurrentJobSyncs"},
			"namespace":                 {"NamespaceController", "ConcurrentNamespaceSyncs"},
			"rc":                        {"ReplicationController", "ConcurrentRCSyncs"},
			"replicaset":                {"ReplicaSetController", "ConcurrentRSSyncs"},
			"resource-quota":            {"ResourceQuotaController", "ConcurrentResourceQuotaSyncs"},
			"service":                   {"ServiceController", "ConcurrentServiceSyncs"},
			"service-endpoint":          {"EndpointSliceController", "ConcurrentServiceEndpointSyncs"},
			"serviceaccount-token":      {"SAController", "ConcurrentSATokenSyncs"},
			"statefulset":               {"StatefulSetController", "ConcurrentStatefulSetSyncs"},
			"ttl-after-finished":        {"TTLAfterFinishedController", "ConcurrentTTLSyncs"},
			"validating-admission-policy-status": {
				"ValidatingAdmissionPolicyStatusController", "ConcurrentPolicySyncs",
			},
		}[info.Syncs]
		if !ok {
			continue
		}
		section, _ := out[at[0]].(settings)
		if section == nil {
			section = settings{}
			out[at[0]] = section
		}
		section[at[1]] = cmp.Or(options.Workers[info.Syncs], info.Workers)
	}
}

func signingConfigz(o credentials.Signing, life time.Duration) settings {
	out := settings{
		"ClusterSigningCertFile": o.All.Cert,
		"ClusterSigningKeyFile":  o.All.Key,
		"ClusterSigningDuration": cmp.Or(life, 365*24*time.Hour).String(),
	}
	for signer, name := range map[string]string{
		certv1.KubeletServingSignerName:             "KubeletServingSignerConfiguration",
		certv1.KubeAPIServerClientKubeletSignerName: "KubeletClientSignerConfiguration",
		certv1.KubeAPIServerClientSignerName:        "KubeAPIServerClientSignerConfiguration",
		certificates.LegacyUnknown:                  "LegacyUnknownSignerConfiguration",
	} {
		files := credentials.AuthorityFiles{}
		if one := o.By[signer]; one != nil {
			files = *one
		}
		out[name] = settings{"CertFile": files.Cert, "KeyFile": files.Key}
	}
	return out
}

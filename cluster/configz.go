// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	certv1 "k8s.io/api/certificates/v1"

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
func schedulerConfigz(r RoleConfig) (string, settings) {
	_, c, err := r.Scheduler.read()
	if err != nil {
		c = schedulerconfig.Default() // alone has reported the error
	}
	var profiles []settings
	for _, p := range c.Profiles {
		profiles = append(profiles, settings{
			"SchedulerName":            p.SchedulerName,
			"PercentageOfNodesToScore": p.PercentageOfNodesToScore,
		})
	}
	return "componentconfig", settings{
		"LeaderElection": r.Election.configz(schedulerLease),
		"ClientConnection": settings{
			"Kubeconfig":  r.kubeconfig("scheduler"),
			"ContentType": "application/vnd.kubernetes.protobuf",
		},
		"Profiles":                 profiles,
		"PercentageOfNodesToScore": *c.PercentageOfNodesToScore,
		"PodInitialBackoffSeconds": *c.PodInitialBackoffSeconds,
		"PodMaxBackoffSeconds":     *c.PodMaxBackoffSeconds,
		"Parallelism":              *c.Parallelism,
		"EnableProfiling":          !r.Serving.NoProfiling,
	}
}

// controllersConfigz returns a KubeControllerManagerConfiguration.
func controllersConfigz(r RoleConfig) (string, settings) {
	o := r.Controllers.Default()
	out := settings{
		"Generic": settings{
			"Port":           r.Serving.Port,
			"Address":        r.Serving.Bind.String(),
			"Controllers":    o.Controllers,
			"LeaderElection": r.Election.configz(controllersLease),
			"ClientConnection": settings{
				"Kubeconfig":  r.kubeconfig("controller-manager"),
				"ContentType": "application/vnd.kubernetes.protobuf",
			},
			"Debugging": settings{"EnableProfiling": !r.Serving.NoProfiling},
		},
		"KubeCloudShared": settings{
			"AllocateNodeCIDRs": o.PodRanges.Allocate == nodeipam.Allocate ||
				o.PodRanges.Allocate != nodeipam.AllocateNothing && len(o.PodRanges.Cluster) > 0,
			"ClusterCIDR":                  (*prefixes)(&o.PodRanges.Cluster).String(),
			"UseServiceAccountCredentials": true,
		},
		"CSRSigningController": r.Signing.configz(o.CertificateLife),
		"SAController": settings{
			"ServiceAccountKeyFile": r.Signing.TokenKeyFile,
			"RootCAFile":            r.Signing.RootCAFile,
		},
		"AttachDetachController": settings{
			"DisableAttachDetachReconcilerSync": true,
			"DisableForceDetachOnTimeout":       o.Attach.NoForceDetach,
		},
		"LegacySATokenCleaner": settings{"CleanUpPeriod": cmp.Or(o.LegacyTokenPeriod, 365*24*time.Hour).String()},
		"NodeIPAMController": settings{
			"ServiceCIDR":          (*prefixes)(&o.PodRanges.Reserved).String(),
			"NodeCIDRMaskSizeIPv4": cmp.Or(o.PodRanges.Bits4, 24),
			"NodeCIDRMaskSizeIPv6": cmp.Or(o.PodRanges.Bits6, 64),
		},
		"NodeLifecycleController": settings{
			"NodeEvictionRate":          max(0, o.Nodes.Rate),
			"SecondaryNodeEvictionRate": max(0, o.Nodes.SecondaryRate),
			"NodeStartupGracePeriod":    o.Nodes.StartupGrace.String(),
			"NodeMonitorGracePeriod":    o.Nodes.Grace.String(),
			"LargeClusterSizeThreshold": max(0, o.Nodes.LargeClusterThreshold),
			"UnhealthyZoneThreshold":    o.Nodes.UnhealthyThreshold,
		},
		"PodGCController": settings{"TerminatedPodGCThreshold": max(0, o.TerminatedPods)},
		"HPAController":   autoscalingConfigz(o.Autoscaling),
	}
	concurrencyConfigz(out, o)
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
func concurrencyConfigz(out settings, o ControllerOptions) {
	for _, c := range KnownControllers() {
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
		}[c.Syncs]
		if !ok {
			continue
		}
		section, _ := out[at[0]].(settings)
		if section == nil {
			section = settings{}
			out[at[0]] = section
		}
		section[at[1]] = cmp.Or(o.Workers[c.Syncs], c.Workers)
	}
}

func (o Signing) configz(life time.Duration) settings {
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
		files := AuthorityFiles{}
		if one := o.By[signer]; one != nil {
			files = *one
		}
		out[name] = settings{"CertFile": files.Cert, "KeyFile": files.Key}
	}
	return out
}

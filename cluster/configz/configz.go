// SPDX-License-Identifier: Apache-2.0

// Package configz is what /configz of a controller manager, a scheduler and a kubelet shows: their options under the
// names of Kubernetes' component configurations. It reads options and changes none.
package configz

import (
	"cmp"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"keelson/cluster/agents"
	"keelson/cluster/credentials"
	"keelson/cluster/scheduling"
	"keelson/controllers"
	"keelson/controllers/certificates"
	"keelson/controllers/nodeipam"
	"keelson/controllers/podautoscaler"
	"keelson/lib/option"
	schedulerconfig "keelson/scheduler/config"
)

// Process is what the configuration of an agent in a process of its own has next to the agent's options.
type Process struct {
	Election agents.Election
	// Lease is the usual name of the lease.
	Lease      string
	Serving    agents.Serving
	Kubeconfig string // its path
}

// Scheduler returns a KubeSchedulerConfiguration.
func Scheduler(options scheduling.Options, process Process) (string, agents.Settings) {
	_, configuration, err := options.Read()
	if err != nil {
		configuration = schedulerconfig.Default() // the start of the scheduler reports the error
	}
	var profiles []agents.Settings
	for _, p := range configuration.Profiles {
		profiles = append(profiles, agents.Settings{
			"SchedulerName":            p.SchedulerName,
			"PercentageOfNodesToScore": p.PercentageOfNodesToScore,
		})
	}
	return "componentconfig", agents.Settings{
		"LeaderElection": process.Election.Configz(process.Lease),
		"ClientConnection": agents.Settings{
			"Kubeconfig":  process.Kubeconfig,
			"ContentType": "application/vnd.kubernetes.protobuf",
		},
		"Profiles":                 profiles,
		"PercentageOfNodesToScore": *configuration.PercentageOfNodesToScore,
		"PodInitialBackoffSeconds": *configuration.PodInitialBackoffSeconds,
		"PodMaxBackoffSeconds":     *configuration.PodMaxBackoffSeconds,
		"Parallelism":              *configuration.Parallelism,
		"EnableProfiling":          !process.Serving.NoProfiling,
	}
}

// Controllers returns a KubeControllerManagerConfiguration.
func Controllers(options controllers.Options, process Process, signing credentials.Signing) (string, agents.Settings) {
	options = options.Default()
	out := agents.Settings{
		"Generic": agents.Settings{
			"Port":           process.Serving.Port,
			"Address":        process.Serving.Bind.String(),
			"Controllers":    options.Controllers,
			"LeaderElection": process.Election.Configz(process.Lease),
			"ClientConnection": agents.Settings{
				"Kubeconfig":  process.Kubeconfig,
				"ContentType": "application/vnd.kubernetes.protobuf",
			},
			"Debugging": agents.Settings{"EnableProfiling": !process.Serving.NoProfiling},
		},
		"KubeCloudShared": agents.Settings{
			"AllocateNodeCIDRs": options.PodRanges.Allocate == nodeipam.Allocate ||
				options.PodRanges.Allocate != nodeipam.AllocateNothing && len(options.PodRanges.Cluster) > 0,
			"ClusterCIDR":                  (*option.CIDRs)(&options.PodRanges.Cluster).String(),
			"UseServiceAccountCredentials": true,
		},
		"CSRSigningController": signers(signing, options.CertificateLife),
		"SAController": agents.Settings{
			"ServiceAccountKeyFile": signing.TokenKeyFile,
			"RootCAFile":            signing.RootCAFile,
		},
		"AttachDetachController": agents.Settings{
			"DisableAttachDetachReconcilerSync": true,
			"DisableForceDetachOnTimeout":       options.Attach.NoForceDetach,
		},
		"LegacySATokenCleaner": agents.Settings{
			"CleanUpPeriod": cmp.Or(options.LegacyTokenPeriod, 365*24*time.Hour).String(),
		},
		"NodeIPAMController": agents.Settings{
			"ServiceCIDR":          (*option.CIDRs)(&options.PodRanges.Reserved).String(),
			"NodeCIDRMaskSizeIPv4": cmp.Or(options.PodRanges.Bits4, 24),
			"NodeCIDRMaskSizeIPv6": cmp.Or(options.PodRanges.Bits6, 64),
		},
		"NodeLifecycleController": agents.Settings{
			"NodeEvictionRate":          max(0, options.Nodes.Rate),
			"SecondaryNodeEvictionRate": max(0, options.Nodes.SecondaryRate),
			"NodeStartupGracePeriod":    options.Nodes.StartupGrace.String(),
			"NodeMonitorGracePeriod":    options.Nodes.Grace.String(),
			"LargeClusterSizeThreshold": max(0, options.Nodes.LargeClusterThreshold),
			"UnhealthyZoneThreshold":    options.Nodes.UnhealthyThreshold,
		},
		"PodGCController": agents.Settings{"TerminatedPodGCThreshold": max(0, options.TerminatedPods)},
		"HPAController":   autoscaling(options.Autoscaling),
	}
	addConcurrency(out, options)
	return "kubecontrollermanager.config.k8s.io", out
}

func autoscaling(a *podautoscaler.Config) agents.Settings {
	c := podautoscaler.Defaults()
	if a != nil {
		c = *a
	}
	return agents.Settings{
		"HorizontalPodAutoscalerSyncPeriod":                   c.SyncPeriod.String(),
		"HorizontalPodAutoscalerDownscaleStabilizationWindow": c.DownscaleStabilization.String(),
		"HorizontalPodAutoscalerTolerance":                    c.Tolerance,
		"HorizontalPodAutoscalerCPUInitializationPeriod":      c.CPUInitialization.String(),
		"HorizontalPodAutoscalerInitialReadinessDelay":        c.InitialReadinessDelay.String(),
	}
}

// addConcurrency adds the number of workers of each controller, keyed by what follows --concurrent- in the flag's
// name.
func addConcurrency(out agents.Settings, options controllers.Options) {
	for _, info := range controllers.Known() {
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
		section, _ := out[at[0]].(agents.Settings)
		if section == nil {
			section = agents.Settings{}
			out[at[0]] = section
		}
		section[at[1]] = cmp.Or(options.Workers[info.Syncs], info.Workers)
	}
}

func signers(o credentials.Signing, life time.Duration) agents.Settings {
	out := agents.Settings{
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
		out[name] = agents.Settings{"CertFile": files.Cert, "KeyFile": files.Key}
	}
	return out
}

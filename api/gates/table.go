// SPDX-License-Identifier: Apache-2.0

package gates

import "strings"

// fixed are gates that do not change here.
type fixed struct {
	// on is whether they are in Kubernetes v1.37 when no one says otherwise.
	on bool
	// absent says that what they switch is not here, although it is on there.
	absent bool
	why    string
	names  string
}

// table holds every feature gate of Kubernetes v1.37 but those that can be turned.
var table = []fixed{
	{
		on:  true,
		why: "as in the release",
		names: `
APIResponseCompression AllowParsingUserUIDFromCertAuth AllowUnsafeMalformedObjectDeletion
AuthorizePodWebsocketUpgradeCreatePermission CRDObservedGenerationTracking CRDValidationRatcheting
CSIServiceAccountTokenSecrets ClearingNominatedNodeNameAfterBinding ClusterTrustBundle ClusterTrustBundleProjection
ComponentFlagz ComponentStatusz ConstrainedImpersonation ContainerRestartRules CustomResourceFieldSelectors
DRAAdminAccess DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints
DRAExtendedResource DRAFractionalCapacityRange DRAPartitionableDevices DRAPrioritizedList
DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout
DeploymentReplicaSetTerminatingReplicas DisableNodeKubeProxyVersion DynamicResourceAllocation EnvFiles
ExcludeAdmissionWebhookVirtualResources ExecProbeTimeout ExtendWebSocketsToKubelet HPAConfigurableTolerance
HPAGeneration HPAScaleToZero HostnameOverride HugepageAwareEviction ImageMaximumGCAge ImageVolume
InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling InPlacePodVerticalScalingInitContainers
JobManagedBy KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages
KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources KubeletPodResourcesGet
KubeletPodResourcesListUseActivePods MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread
MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MultiCIDRServiceAllocator
MutableCSINodeAllocatableCount MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
MutatingAdmissionPolicy NodeDeclaredFeatures NodeInclusionPolicyInPodTopologySpread NominatedNodeNameForExpectation
OpenAPIEnums OpportunisticBatching PersistentVolumeClaimUnusedSinceTime PodCertificateRequest PodDeletionCost
PodLevelResources PodLevelResourcesFixDefaulting PodLevelResourcesFixKubeletQOSClass PodObservedGenerationTracking
PodReadyToStartContainersCondition PodSchedulingReadiness PodTopologyLabelsAdmission PodsAPI PortForwardWebsockets
PreferSameTrafficDistribution ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
RelaxedEnvironmentVariableValidation RelaxedServiceNameValidation ReloadKubeletClientCAFile
ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResourceHealthStatus ResourceHealthStatusMessage
RestartAllContainersOnContainerExits RotateKubeletServerCertificate SELinuxChangePolicy SchedulerAsyncPreemption
SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo ServiceCIDRStatusFieldWiping
StorageCapacityScoring StorageVersionHash StorageVersionMigrator StrictIPCIDRValidation SupplementalGroupsPolicy
SystemdWatchdog TokenRequestServiceAccountUIDValidation TranslateStreamCloseWebsocketRequests UserNamespacesSupport
VolumeAttributesClass VolumeLimitScaling WatchList WatchListClient
`,
	},
	{
		on:     true,
		absent: true,
		why:    "kube-proxy's: the proxy is ours, on nftables",
		names: `
KubeProxyIPVS NFTablesNetlink NFTablesProxyMode
`,
	},
	{
		on:     true,
		absent: true,
		why:    "of Windows nodes: all nodes are Linux",
		names: `
WinDSR WinOverlay WindowsGracefulNodeShutdown
`,
	},
	{
		on:     true,
		absent: true,
		why:    "assigns processors and memory zones to single containers: the kubelet shares them all",
		names: `
CPUManagerPolicyBetaOptions CPUManagerPolicyOptions DisableCPUQuotaWithExclusiveCPUs TopologyManagerPolicyBetaOptions
TopologyManagerPolicyOptions
`,
	},
	{
		on:     true,
		absent: true,
		why:    "the kubelet does not wait for pods when the machine is shut down",
		names: `
GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority
`,
	},
	{
		on:     true,
		absent: true,
		why:    "pods get no swap and no memory.high",
		names: `
MemoryQoS NodeSwap
`,
	},
	{
		on:     true,
		absent: true,
		why:    "nothing sets SELinux labels",
		names: `
SELinuxMount SELinuxMountReadWriteOncePod
`,
	},
	{
		on:     true,
		absent: true,
		why:    "containers cannot be checkpointed",
		names: `
ContainerCheckpoint
`,
	},
	{
		on:     true,
		absent: true,
		why:    "the kubelet's configuration file has no such field",
		names: `
CustomCPUCFSQuotaPeriod
`,
	},
	{
		on:     true,
		absent: true,
		why:    "the kubelet exports no spans",
		names: `
KubeletTracing
`,
	},
	{
		on:     true,
		absent: true,
		why:    "the kubelet runs no credential provider plugins",
		names: `
KubeletServiceAccountTokenForCredentialProviders
`,
	},
	{
		on:     true,
		absent: true,
		why:    "service account tokens are signed by the API server alone",
		names: `
ExternalServiceAccountTokenSigner
`,
	},
	{
		on:     true,
		absent: true,
		why:    "admission is configured by the API alone",
		names: `
ManifestBasedAdmissionControlConfig
`,
	},
	{
		on:     true,
		absent: true,
		why:    "API servers do not pass requests on to each other",
		names: `
APIServerIdentity UnknownVersionInteroperabilityProxy
`,
	},
	{
		on:     true,
		absent: true,
		why:    "images and containers have one file system",
		names: `
KubeletSeparateDiskGC
`,
	},
	{
		on:     true,
		absent: true,
		why:    "there is no egress selector",
		names: `
StructuredAuthenticationConfigurationEgressSelector
`,
	},
	{
		on:     true,
		absent: true,
		why:    "the kubelet serves files of logs, and does not read the journals of services",
		names: `
NodeLogQuery
`,
	},
	{
		on:     true,
		absent: true,
		why:    "without root of the machine a cluster has one fake node",
		names: `
KubeletInUserNamespace
`,
	},
	{
		on:     true,
		absent: true,
		why:    "watches are not compressed",
		names: `
WatchListCompression
`,
	},
	{
		on:     true,
		absent: true,
		why:    "no metrics say when the keys of issuers were read",
		names: `
StructuredAuthenticationConfigurationJWKSMetrics
`,
	},
	{
		on:  true,
		why: "how Kubernetes' programs work inside, or speak to each other; here it is done otherwise",
		names: `
AggregatedDiscoveryRemoveBetaType AtomicFIFO ClientsAllowCARotation ClientsAllowTLSCacheGC ConcurrentWatchObjectDecode
DeclarativeValidation DeclarativeValidationBeta DetectCacheInconsistency DisableAllocatorDualWrite EtcdRangeStream
HPAOptimizedSelectorStore InOrderInformers InOrderInformersBatchProcess InformerResourceVersion ListFromCacheSnapshot
NodeControllerLeaseCircuitBreaker PLEGOnDemandRelist SeparateTaintEvictionController SizeBasedListCostEstimate
StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA StaleControllerConsistencyJob
StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison
StorageNamespaceIndex UnauthenticatedHTTP2DOSMitigation UnlockWhileProcessingFIFO WatchCacheInitializationPostStartHook
WebhookRoundTripLoadBalancing
`,
	},
	{
		on:  false,
		why: "of Windows nodes: all nodes are Linux",
		names: `
WindowsCPUAndMemoryAffinity WindowsHostNetwork
`,
	},
	{
		on:  false,
		why: "as in the release",
		names: `
APIServerWebhookAuthenticationToken APIServingWithRoutine AllAlpha AllBeta AllowDNSOnlyNodeCSR
AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds AtomicWriteVolumeUserFields
CBORServingAndStorage CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth
ChangeContainerStatusOnKubeletRestart ClientsAllowCBOR ClientsPreferCBOR
CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook CompositePodGroup
ConsistentListFromCacheSkipTimeoutFallback ContainerStopSignals ControllerManagerReleaseLeaderElectionLockOnExit
CoordinatedLeaderElection CrossNamespaceVolumeDataSource DRADerivedAttributes DRADeviceCompatibilityGroups
DRAListTypeAttributes DRANodeAllocatableResources DRAOptionalNodeOperations DRAPartitionableDevicesType
DRAResourcePoolStatus DRAWorkloadResourceClaims DeclarativeValidationTakeover DefaultPodSysctls EmptyDirVolumeMode
EventedPLEG EvictionRequestAPI GRPCContainerProbeTLS GitRepoVolumeDriver H2CContainerProbe ImageVolumeWithDigest
InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
InPlacePodVerticalScalingMemoryBackedVolumes InPlacePodVerticalScalingSchedulerPreemption
InterPodAffinityHostnameFastPath KMSv1 KubeProxyNFTablesLocalhostNodePorts KubeletAllocatedPodsEndpoint
KubeletRegistrationGetOnExistsOnly LocalStorageCapacityIsolationFSQuotaMonitoring MutablePVNodeAffinity
NodeLifecycleConditions PodAndContainerStatsFromCRI PodGroupPreemptionPolicy PodLevelResourceManagers
PodLogsQuerySplitStreams QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi SchedulerAsyncAPICalls
SchedulerPreQueueingHints SeparateCacheWatchRPC ShardedListAndWatch StatefulSetRecreateStrategy StorageVersionAPI
TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling TopologyManagerPolicyAlphaOptions
UserNamespacesHostNetworkSupport VolumeBindMountOptions WorkloadWithJob
`,
	},
}

// find returns the row of a gate, nil if it is in none.
func find(name string) *fixed {
	for i := range table {
		for n := range strings.FieldsSeq(table[i].names) {
			if n == name {
				return &table[i]
			}
		}
	}
	return nil
}

// names are those of all gates of the table.
func names() []string {
	var all []string
	for _, row := range table {
		all = append(all, strings.Fields(row.names)...)
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package configz

import (
	"cmp"
	"strings"
	"time"

	"keelson/cluster/agents"
	"keelson/kubelet"
	"keelson/kubelet/eviction"
)

// Kubelet returns a KubeletConfiguration, with what the kubelet takes where nothing was said.
func Kubelet(of *kubelet.Config) (string, agents.Settings) {
	lease := cmp.Or(of.LeaseInterval, 10*time.Second)
	return "kubeletconfig", agents.Settings{
		"kind":         "KubeletConfiguration",
		"apiVersion":   "kubelet.config.k8s.io/v1beta1",
		"enableServer": of.TLS != nil,
		"address":      of.Address.String(),
		"port":         of.Port,
		"readOnlyPort": 0,
		"authentication": agents.Settings{
			"anonymous": agents.Settings{"enabled": false},
			"webhook":   agents.Settings{"enabled": of.ByToken != nil},
		},
		"authorization":             agents.Settings{"mode": "Webhook"},
		"rotateCertificates":        true,
		"staticPodPath":             of.StaticPodDir,
		"clusterDomain":             cmp.Or(of.ClusterDomain, "cluster.local"),
		"clusterDNS":                of.ClusterDNS,
		"resolvConf":                of.ResolvConf,
		"registerNode":              of.RegisterNode,
		"registerWithTaints":        of.Taints,
		"nodeStatusReportFrequency": cmp.Or(of.StatusInterval, 5*time.Minute).String(),
		"nodeLeaseDurationSeconds":  int(max(4*lease, 40*time.Second).Seconds()),
		"maxPods":                   cmp.Or(of.MaxPods, 110),
		"podPidsLimit":              cmp.Or(of.PodMaxPids, 4096),
		"allowedUnsafeSysctls":      of.AllowedUnsafeSysctls,
		"serializeImagePulls":       false,
		"maxParallelImagePulls":     cmp.Or(of.ParallelPulls, 3),
		"imageMaximumGCAge":         of.ImageMaxAge.String(),
		"imagePullCredentialsVerificationPolicy": cmp.Or(of.ImagePullCredentialsVerificationPolicy,
			"NeverVerifyPreloadedImages"),
		"preloadedImagesVerificationAllowlist": of.PreloadedImagesVerificationAllowlist,
		"containerLogMaxSize":                  of.ContainerLogs.Complete().MaxSize,
		"containerLogMaxFiles":                 of.ContainerLogs.Complete().MaxFiles,
		"crashLoopBackOff": agents.Settings{
			"maxContainerRestartPeriod": cmp.Or(of.CrashBackOffMax, 5*time.Minute).String(),
		},
		"evictionHard":                     pairs(cmp.Or(of.Eviction.Hard, eviction.DefaultHard), "<"),
		"evictionSoft":                     pairs(of.Eviction.Soft, "<"),
		"evictionSoftGracePeriod":          pairs(of.Eviction.SoftGrace, "="),
		"evictionMinimumReclaim":           pairs(of.Eviction.MinimumReclaim, "="),
		"evictionPressureTransitionPeriod": cmp.Or(of.Eviction.Transition, 5*time.Minute).String(),
		"evictionMaxPodGracePeriod":        of.Eviction.MaxPodGrace,
		"kubeReserved":                     of.KubeReserved,
		"cgroupRoot":                       of.CgroupRoot,
		"enableDebuggingHandlers":          true,
		"enableSystemLogHandler":           of.LogDir != "",
		"enableSystemLogQuery":             false,
		"failCgroupV1":                     false,
		"failSwapOn":                       false,
	}
}

// pairs takes a list like a<1,b<2 apart.
func pairs(list, separator string) map[string]string {
	out := map[string]string{}
	for one := range strings.SplitSeq(list, ",") {
		if name, value, ok := strings.Cut(one, separator); ok {
			out[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package stats

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The wire format of the summary API: only what the runtime and the kernel report.
type (
	cpu struct {
		Time                 metav1.Time `json:"time"`
		UsageNanoCores       *uint64     `json:"usageNanoCores,omitempty"`
		UsageCoreNanoSeconds *uint64     `json:"usageCoreNanoSeconds,omitempty"`
		PSI                  *pressure   `json:"psi,omitempty"`
	}
	memory struct {
		Time            metav1.Time `json:"time"`
		AvailableBytes  *uint64     `json:"availableBytes,omitempty"`
		UsageBytes      *uint64     `json:"usageBytes,omitempty"`
		WorkingSetBytes *uint64     `json:"workingSetBytes,omitempty"`
		RSSBytes        *uint64     `json:"rssBytes,omitempty"`
		PageFaults      *uint64     `json:"pageFaults,omitempty"`
		MajorPageFaults *uint64     `json:"majorPageFaults,omitempty"`
		PSI             *pressure   `json:"psi,omitempty"`
	}
	ioUsage struct {
		Time metav1.Time `json:"time"`
		PSI  *pressure   `json:"psi,omitempty"`
	}
	swap struct {
		Time           metav1.Time `json:"time"`
		AvailableBytes *uint64     `json:"swapAvailableBytes,omitempty"`
		UsageBytes     *uint64     `json:"swapUsageBytes,omitempty"`
	}
	fileSystem struct {
		Time           metav1.Time `json:"time"`
		AvailableBytes *uint64     `json:"availableBytes,omitempty"`
		CapacityBytes  *uint64     `json:"capacityBytes,omitempty"`
		UsedBytes      *uint64     `json:"usedBytes,omitempty"`
		InodesFree     *uint64     `json:"inodesFree,omitempty"`
		Inodes         *uint64     `json:"inodes,omitempty"`
		InodesUsed     *uint64     `json:"inodesUsed,omitempty"`
	}
	container struct {
		Name   string      `json:"name"`
		Start  metav1.Time `json:"startTime"`
		CPU    *cpu        `json:"cpu,omitempty"`
		Memory *memory     `json:"memory,omitempty"`
		IO     *ioUsage    `json:"io,omitempty"`
		Rootfs *fileSystem `json:"rootfs,omitempty"`
		Logs   *fileSystem `json:"logs,omitempty"`
		Swap   *swap       `json:"swap,omitempty"`
	}
	netInterface struct {
		Name     string  `json:"name"`
		RxBytes  *uint64 `json:"rxBytes,omitempty"`
		RxErrors *uint64 `json:"rxErrors,omitempty"`
		TxBytes  *uint64 `json:"txBytes,omitempty"`
		TxErrors *uint64 `json:"txErrors,omitempty"`
	}
	network struct {
		Time metav1.Time `json:"time"`
		netInterface
		Interfaces []netInterface `json:"interfaces,omitempty"`
	}
	processStats struct {
		Count *uint64 `json:"process_count,omitempty"`
	}
	volume struct {
		fileSystem
		Name string    `json:"name"`
		PVC  *claimRef `json:"pvcRef,omitempty"`
	}
	claimRef struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	podRef struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	}
	pod struct {
		Ref        podRef        `json:"podRef"`
		Start      metav1.Time   `json:"startTime"`
		Containers []container   `json:"containers"`
		CPU        *cpu          `json:"cpu,omitempty"`
		Memory     *memory       `json:"memory,omitempty"`
		IO         *ioUsage      `json:"io,omitempty"`
		Network    *network      `json:"network,omitempty"`
		Volumes    []volume      `json:"volume,omitempty"`
		Ephemeral  *fileSystem   `json:"ephemeral-storage,omitempty"`
		Processes  *processStats `json:"process_stats,omitempty"`
	}
	node struct {
		Name    string        `json:"nodeName"`
		Start   metav1.Time   `json:"startTime"`
		CPU     *cpu          `json:"cpu,omitempty"`
		Memory  *memory       `json:"memory,omitempty"`
		IO      *ioUsage      `json:"io,omitempty"`
		Fs      *fileSystem   `json:"fs,omitempty"`
		Runtime *runtimeStats `json:"runtime,omitempty"`
		Rlimit  *rlimit       `json:"rlimit,omitempty"`
		Swap    *swap         `json:"swap,omitempty"`
	}
	runtimeStats struct {
		ImageFs *fileSystem `json:"imageFs,omitempty"`
	}
	rlimit struct {
		Time      metav1.Time `json:"time"`
		MaxPID    *int64      `json:"maxpid,omitempty"`
		Processes *int64      `json:"curproc,omitempty"`
	}
	summary struct {
		Node node  `json:"node"`
		Pods []pod `json:"pods"`
	}
)

// SPDX-License-Identifier: Apache-2.0

// Package stats reads what containers and pods use, in CRI's messages: the statistics of the kubelet's summary, and the
// metrics with cAdvisor's names. runtime/server calls it. It reads cgroups, the interfaces of the pods and the sizes of
// writable layers each time; only rates and slow counts are kept, with the container or sandbox (pods.Rate, pods.Disk).
// It changes nothing, waits for nothing and holds no lock of its own.
package stats

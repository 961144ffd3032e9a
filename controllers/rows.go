// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"keelson/controllers/nodeipam"
	"keelson/controllers/podautoscaler"
	"keelson/lib/option"
)

// Rows are the controllers' options, for `up` and `controller-manager`. Names and meaning are
// kube-controller-manager's.
func (o *Options) Rows() []option.Row {
	return slices.Concat(
		option.In("Controllers", someControllerRows(o)...),
		option.In("Concurrent syncs", workerRows(o)...),
		option.In("Node lifecycle controller", lifecycleRows(o)...),
		option.In("Attachdetach controller", attachRows(o)...),
		option.In("Horizontalpodautoscaling controller", autoscalingRows(o)...),
		option.In("Nodeipam controller", podRangeRows(o)...),
	)
}

// workerRows set how many objects a controller syncs at once.
func workerRows(o *Options) []option.Row {
	seen := map[string]bool{}
	var rows []option.Row
	for _, c := range Known() {
		if c.Syncs == "" || seen[c.Syncs] {
			continue
		}
		seen[c.Syncs] = true
		rows = append(rows, option.Set(workersFlag{o, c.Syncs, c.Workers}, "concurrent-"+c.Syncs+"-syncs",
			"how many objects the "+c.Name+" works on at once"))
	}
	return rows
}

// podRangeRows configure the allocation of pod CIDRs to nodes.
func podRangeRows(o *Options) []option.Row {
	return []option.Row{
		option.Switch((*allocate)(&o.PodRanges.Allocate), "allocate-node-cidrs",
			"allocate a pod CIDR from --cluster-cidr to "+
				"each node without one; requires --cluster-cidr (default: true if --cluster-cidr is set)"),
		option.Set((*option.CIDRs)(&o.PodRanges.Cluster), "cluster-cidr",
			"`CIDR` for the pods of the cluster, or one per IP "+
				"family, separated by a comma (keelson up: default 10.42.0.0/16)"),
		option.New(&o.PodRanges.Bits4, "node-cidr-mask-size-ipv4", 24, "mask size of a node's IPv4 pod CIDR"),
		option.New(&o.PodRanges.Bits6, "node-cidr-mask-size-ipv6", 64, "mask size of a node's IPv6 pod CIDR"),
	}
}

// someControllerRows are the options for all controllers, and of controllers that have one only.
func someControllerRows(o *Options) []option.Row {
	o.TerminatedPods = 12500
	return []option.Row{
		option.New(&o.Controllers, "controllers", []string{"*"}, controllersUsage(Known())),
		option.Set((*threshold)(&o.TerminatedPods), "terminated-pod-gc-threshold",
			"keep `N` finished pods before the oldest are deleted; 0 or less: all"),
		option.New(&o.LegacyTokenPeriod, "legacy-service-account-token-clean-up-period", 365*24*time.Hour,
			"how long a service account's secret token must be unused before it is invalidated, and then invalid "+
				"before it is deleted"),
		option.New(&o.CertificateLife, "cluster-signing-duration", 365*24*time.Hour,
			"maximum duration of signed certificates; a request may ask for a shorter one"),
	}
}

func controllersUsage(all []Info) string {
	var on, off []string
	for _, c := range all {
		name := c.Name
		if c.Alias != "" {
			name += " (" + c.Alias + ")"
		}
		if c.Off {
			off = append(off, name)
		} else {
			on = append(on, name)
		}
	}
	slices.Sort(on)
	slices.Sort(off)
	usage := "`NAMES` of the controllers to run, separated by commas: * for those that are on by default, NAME for " +
		"one, -NAME for all but one." +
		"\nOn by default, with older names: " + strings.Join(on, ", ")
	if len(off) > 0 {
		usage += "\nOff by default: " + strings.Join(off, ", ")
	}
	return usage
}

// autoscalingRows configure the HorizontalPodAutoscaler controller.
func autoscalingRows(o *Options) []option.Row {
	config := podautoscaler.Defaults()
	o.Autoscaling = &config
	return []option.Row{
		option.New(&config.SyncPeriod, "horizontal-pod-autoscaler-sync-period", config.SyncPeriod,
			"period of syncing the replicas of a HorizontalPodAutoscaler"),
		option.New(&config.Tolerance, "horizontal-pod-autoscaler-tolerance", config.Tolerance,
			"minimum `FRACTION` by which a metric must differ from its target before the target is scaled"),
		option.New(&config.DownscaleStabilization, "horizontal-pod-autoscaler-downscale-stabilization",
			config.DownscaleStabilization,
			"stabilization window for scaling down: the highest recommendation in it counts"),
		option.New(&config.InitialReadinessDelay, "horizontal-pod-autoscaler-initial-readiness-delay",
			config.InitialReadinessDelay,
			"time after a pod's start in which a change to unready counts as the initial readiness"),
		option.New(&config.CPUInitialization, "horizontal-pod-autoscaler-cpu-initialization-period",
			config.CPUInitialization,
			"time after a pod's start in which its CPU usage may be ignored"),
	}
}

// allocate is a flag of three states: true, false or unset.
type allocate nodeipam.Allocation

// String formats the flag's value.
func (a *allocate) String() string {
	switch nodeipam.Allocation(*a) {
	case nodeipam.Allocate:
		return "true"
	case nodeipam.AllocateNothing:
		return "false"
	}
	return ""
}

// Set parses the flag's value.
func (a *allocate) Set(text string) error {
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", text)
	}
	*a = allocate(nodeipam.AllocateNothing)
	if yes {
		*a = allocate(nodeipam.Allocate)
	}
	return nil
}

// Type names the value in the usage text.
func (*allocate) Type() string { return "bool" }

// threshold is an integer flag whose value 0 is stored as -1, because 0 in the options means the default.
type threshold int

// String formats the flag's value.
func (t *threshold) String() string { return strconv.Itoa(int(*t)) }

// Set parses the flag's value.
func (t *threshold) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is not a number", text)
	}
	if n == 0 {
		n = -1
	}
	*t = threshold(n)
	return nil
}

// Type names the value in the usage text.
func (*threshold) Type() string { return "int32" }

// lifecycleRows configure when nodes are unhealthy and how fast their pods are evicted.
func lifecycleRows(o *Options) []option.Row {
	config := &o.Nodes
	config.Rate = 0.1
	config.SecondaryRate = 0.01
	config.LargeClusterThreshold = 50
	return []option.Row{
		option.New(&config.Grace, "node-monitor-grace-period", 50*time.Second,
			"how long a node may send no heartbeat before its conditions become Unknown"),
		option.New(&config.StartupGrace, "node-startup-grace-period", time.Minute,
			"how long a new node may take to report its first status before its conditions become Unknown"),
		option.Set((*perSecond)(&config.Rate), "node-eviction-rate",
			"evict pods from `N` unhealthy nodes per second and zone; 0: from none"),
		option.Set((*perSecond)(&config.SecondaryRate), "secondary-node-eviction-rate",
			"--node-eviction-rate of a large zone that is unhealthy"),
		option.New(&config.UnhealthyThreshold, "unhealthy-zone-threshold", 0.55,
			"`FRACTION` of nodes not ready from which a zone is unhealthy"),
		option.Set((*threshold)(&config.LargeClusterThreshold), "large-cluster-size-threshold",
			"a zone of up to `N` nodes is small: while it is unhealthy, no pods are evicted from its nodes"),
	}
}

// attachRows configure the attach/detach controller.
func attachRows(o *Options) []option.Row {
	return []option.Row{
		option.New(&o.Attach.NoForceDetach, "disable-force-detach-on-timeout", false,
			"leave volumes attached to lost nodes that may still use them, until the node is tainted as out of "+
				"service"),
		option.New(new(bool), "disable-attach-detach-reconcile-sync", false,
			"without effect: attachments are watched, not compared periodically"),
		option.New(new(time.Duration), "attach-detach-reconcile-sync-period", time.Minute,
			"without effect: attachments are watched"),
	}
}

// perSecond is a rate flag whose value 0 is stored as -1: never.
type perSecond float64

// String formats the flag's value.
func (r *perSecond) String() string { return strconv.FormatFloat(max(0, float64(*r)), 'g', -1, 64) }

// Set parses the flag's value.
func (r *perSecond) Set(text string) error {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 0) {
		return fmt.Errorf("%q is not a rate", text)
	}
	if f == 0 {
		f = -1
	}
	*r = perSecond(f)
	return nil
}

// Type names the value in the usage text.
func (*perSecond) Type() string { return "float32" }

// workersFlag is a --concurrent-X-syncs flag.
type workersFlag struct {
	o     *Options
	syncs string
	usual int
}

// String formats the flag's value.
func (w workersFlag) String() string {
	if w.o == nil {
		return "0"
	}
	if n, ok := w.o.Workers[w.syncs]; ok {
		return strconv.Itoa(n)
	}
	return strconv.Itoa(w.usual)
}

// Set parses the flag's value.
func (w workersFlag) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is not a number", text)
	}
	if w.o.Workers == nil {
		w.o.Workers = map[string]int{}
	}
	w.o.Workers[w.syncs] = n
	return nil
}

// Type names the value in the usage text.
func (workersFlag) Type() string { return "int32" }

// SPDX-License-Identifier: Apache-2.0

// Package eviction is the kubelet's eviction manager. It evicts pods that exceed a limit of their own (sizeLimit of an
// emptyDir, ephemeral-storage). When the node is low on memory, disk, inodes or process ids, it first reclaims dead
// containers and unused images, then evicts one pod after the other in Kubernetes' order. Meanwhile the node has a
// pressure condition, and Refuse rejects pods that would make it worse.
//
// Decisions are pure functions of measured values: Next, Rank, Message and OverLimit. Manager gets the values from a
// Source and acts on a Node; the kubelet's root package implements both. Nothing here measures, kills a container or
// deletes a pod. Rules and messages are those of Kubernetes' kubelet
// (https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/).
package eviction

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/lib/quantity"
)

// Signal is an eviction signal: a resource of the node that may run low.
type Signal string

// The signals.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFsAvailable   Signal = "nodefs.available"
	NodeFsInodesFree  Signal = "nodefs.inodesFree"
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
)

// Names of resources that pods cannot request.
const (
	inodes corev1.ResourceName = "inodes"
	pids   corev1.ResourceName = "pids"
)

type signalInfo struct {
	condition corev1.NodeConditionType
	resource  corev1.ResourceName
}

// signals has the node condition and the resource of each signal.
var signals = map[Signal]signalInfo{
	MemoryAvailable:   {corev1.NodeMemoryPressure, corev1.ResourceMemory},
	NodeFsAvailable:   {corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
	NodeFsInodesFree:  {corev1.NodeDiskPressure, inodes},
	ImageFsAvailable:  {corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
	ImageFsInodesFree: {corev1.NodeDiskPressure, inodes},
	PIDAvailable:      {corev1.NodePIDPressure, pids},
}

// Value is a quantity or a fraction of the capacity.
type Value struct {
	Quantity string  // canonical; empty: Fraction is used
	Fraction float32 // 0.1 is 10 %
}

// Resolve returns the value as a quantity, for this capacity.
func (v Value) Resolve(capacity *resource.Quantity) *resource.Quantity {
	if v.Quantity != "" {
		q := resource.MustParse(v.Quantity) // Parse wrote it
		return &q
	}
	return resource.NewQuantity(int64(float64(capacity.Value())*float64(v.Fraction)), capacity.Format)
}

// Threshold is met while less than Value of a signal is available. It is comparable.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long it must be met before pods are evicted; 0: a hard threshold.
	Grace time.Duration
	// Reclaim is the minimum reclaim: how much more than Value must be available before the threshold counts as
	// resolved.
	Reclaim Value
}

// Config has the kubelet's eviction flags.
type Config struct {
	// Hard and Soft are like memory.available<100Mi,nodefs.available<10%. Hard empty: Kubernetes' defaults.
	Hard, Soft string
	// SoftGrace is like memory.available=1m30s, and MinimumReclaim like nodefs.available=1Gi.
	SoftGrace, MinimumReclaim string
	// MaxPodGrace is the grace period in seconds of a pod that is evicted for a soft threshold; 0: the pod's own grace
	// period.
	MaxPodGrace int64
	// Interval is the time between two checks of a node with pods; 0: 10 s, as in Kubernetes.
	Interval time.Duration
	// Transition is how long a condition stays after its threshold was last met; 0: 5 minutes.
	Transition time.Duration
}

// DefaultHard is Kubernetes' default of --eviction-hard.
const DefaultHard = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%," +
	"imagefs.available<15%,imagefs.inodesFree<5%"

const defaultTransition = 5 * time.Minute

// Thresholds parses the flags.
func (c Config) Thresholds() ([]Threshold, error) {
	hard := c.Hard
	if hard == "" {
		hard = DefaultHard
	}
	out, err := parse("--eviction-hard", hard)
	if err != nil {
		return nil, err
	}
	soft, err := parse("--eviction-soft", c.Soft)
	if err != nil {
		return nil, err
	}
	graces, err := pairs("--eviction-soft-grace-period", c.SoftGrace, "=")
	if err != nil {
		return nil, err
	}
	for i := range soft {
		text, ok := graces[soft[i].Signal]
		if !ok {
			return nil, fmt.Errorf("--eviction-soft-grace-period: grace period must be specified for the soft "+
				"eviction threshold %s", soft[i].Signal)
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("--eviction-soft-grace-period: %s=%s is not a positive duration like 1m30s",
				soft[i].Signal, text)
		}
		soft[i].Grace = d
	}
	out = append(out, soft...)
	reclaims, err := pairs("--eviction-minimum-reclaim", c.MinimumReclaim, "=")
	if err != nil {
		return nil, err
	}
	for i := range out {
		if text, ok := reclaims[out[i].Signal]; ok {
			if out[i].Reclaim, err = value(text); err != nil {
				return nil, fmt.Errorf("--eviction-minimum-reclaim: %s: %w", out[i].Signal, err)
			}
		}
	}
	if c.MaxPodGrace < 0 || c.Transition < 0 {
		return nil,
			fmt.Errorf("--eviction-max-pod-grace-period and --eviction-pressure-transition-period must not be negative")
	}
	return out, nil
}

// pairs splits "signal<value,signal<value".
func pairs(flag, text, sep string) (map[Signal]string, error) {
	out := map[Signal]string{}
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		name, v, ok := strings.Cut(one, sep)
		signal := Signal(strings.TrimSpace(name))
		if !ok {
			return nil, fmt.Errorf("%s: %q is not of the form SIGNAL%sVALUE", flag, one, sep)
		}
		if _, known := signals[signal]; !known {
			return nil, fmt.Errorf("%s: unsupported eviction signal %s; there are %v", flag, signal,
				slices.Sorted(maps.Keys(signals)))
		}
		if _, twice := out[signal]; twice {
			return nil, fmt.Errorf("%s: %s is given twice", flag, signal)
		}
		out[signal] = strings.TrimSpace(v)
	}
	return out, nil
}

// parse parses thresholds, ordered by signal. 0% and 100% disable a threshold.
func parse(flag, text string) ([]Threshold, error) {
	all, err := pairs(flag, text, "<")
	if err != nil {
		return nil, err
	}
	var out []Threshold
	for _, signal := range slices.Sorted(maps.Keys(all)) {
		if all[signal] == "0%" || all[signal] == "100%" {
			continue
		}
		v, err := value(all[signal])
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", flag, signal, err)
		}
		if v.Quantity == "0" {
			return nil, fmt.Errorf("%s: eviction threshold %s must be positive: 0", flag, signal)
		}
		out = append(out, Threshold{Signal: signal, Value: v})
	}
	return out, nil
}

func value(text string) (Value, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		p, err := strconv.ParseFloat(number, 32)
		if err != nil || !(p > 0 && p <= 100) {
			return Value{}, fmt.Errorf("%q is not a percentage above 0%% and up to 100%%", text)
		}
		return Value{Fraction: float32(p) / 100}, nil
	}
	q, err := quantity.Parse(text)
	if err != nil {
		return Value{}, fmt.Errorf("%q: %w", text, err)
	}
	if q.Sign() < 0 {
		return Value{}, fmt.Errorf("%q is negative", text)
	}
	return Value{Quantity: q.String()}, nil
}

// Reserved returns the part of the capacity that hard thresholds keep from pods. The node's allocatable excludes it.
func Reserved(thresholds []Threshold, capacity corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, t := range thresholds {
		if t.Grace != 0 || t.Signal != MemoryAvailable && t.Signal != NodeFsAvailable {
			continue
		}
		name := signals[t.Signal].resource
		if all, ok := capacity[name]; ok {
			out[name] = *t.Value.Resolve(&all)
		}
	}
	return out
}

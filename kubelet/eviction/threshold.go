// SPDX-License-Identifier: Apache-2.0

// Package eviction protects a node from its pods. A pod that exceeds a limit of its own (an emptyDir's sizeLimit, ephemeral-storage) is
// ended. When the node itself is low on memory, disk, inodes or process ids, what nobody needs is removed first, and then one pod after the
// other is ended, in Kubernetes' order; meanwhile the node says so in its conditions and takes no new pods that would make it worse.
//
// Deciding is pure: Next, Rank, Message and OverLimit are functions of figures. Manager feeds them from a Source and applies the outcome
// to a Node; the kubelet's root package makes both. The rules and words are those of Kubernetes' kubelet
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
)

// Signal is a resource of the node that may run low.
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

// Names of resources that pods cannot ask for.
const (
	inodes corev1.ResourceName = "inodes"
	pids   corev1.ResourceName = "pids"
)

type signalInfo struct {
	condition corev1.NodeConditionType
	resource  corev1.ResourceName
}

// signals says what each signal is about.
var signals = map[Signal]signalInfo{
	MemoryAvailable:   {corev1.NodeMemoryPressure, corev1.ResourceMemory},
	NodeFsAvailable:   {corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
	NodeFsInodesFree:  {corev1.NodeDiskPressure, inodes},
	ImageFsAvailable:  {corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
	ImageFsInodesFree: {corev1.NodeDiskPressure, inodes},
	PIDAvailable:      {corev1.NodePIDPressure, pids},
}

// Value is a quantity, or a part of the capacity.
type Value struct {
	Quantity string  // canonical; empty: Part
	Part     float32 // 0.1 is 10 %
}

// Of is the value where there is this capacity.
func (v Value) Of(capacity *resource.Quantity) *resource.Quantity {
	if v.Quantity != "" {
		q := resource.MustParse(v.Quantity) // Parse wrote it
		return &q
	}
	return resource.NewQuantity(int64(float64(capacity.Value())*float64(v.Part)), capacity.Format)
}

// Threshold is met while less than Value of a signal is available. It is comparable.
type Threshold struct {
	Signal Signal
	Value  Value
	// Grace is how long it must be met before pods are ended; 0: a hard threshold.
	Grace time.Duration
	// Reclaim is how much more than Value must be available before it counts as resolved.
	Reclaim Value
}

// Config is the kubelet's flags of the same names.
type Config struct {
	// Hard and Soft are like memory.available<100Mi,nodefs.available<10%. Hard empty: Kubernetes' defaults.
	Hard, Soft string
	// SoftGrace is like memory.available=1m30s, and MinimumReclaim like nodefs.available=1Gi.
	SoftGrace, MinimumReclaim string
	// MaxPodGrace is how many seconds a pod gets that a soft threshold ends; 0: its own grace period.
	MaxPodGrace int64
	// Interval is how often a node with pods is looked at; 0: 10 s, as Kubernetes does.
	Interval time.Duration
	// Transition is how long a condition stays after its threshold was last met; 0: 5 minutes.
	Transition time.Duration
}

// DefaultHard is Kubernetes' default of --eviction-hard.
const DefaultHard = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

const defaultTransition = 5 * time.Minute

// Thresholds reads the configuration.
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
			return nil, fmt.Errorf("--eviction-soft-grace-period: grace period must be specified for the soft eviction threshold %s", soft[i].Signal)
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("--eviction-soft-grace-period: %s=%s is not a positive duration like 1m30s", soft[i].Signal, text)
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
		return nil, fmt.Errorf("--eviction-max-pod-grace-period and --eviction-pressure-transition-period must not be negative")
	}
	return out, nil
}

// pairs splits signal<value,signal<value.
func pairs(flag, text, sep string) (map[Signal]string, error) {
	out := map[Signal]string{}
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		name, v, ok := strings.Cut(one, sep)
		s := Signal(strings.TrimSpace(name))
		if !ok {
			return nil, fmt.Errorf("%s: %q is not of the form SIGNAL%sVALUE", flag, one, sep)
		}
		if _, known := signals[s]; !known {
			return nil, fmt.Errorf("%s: unsupported eviction signal %s; there are %v", flag, s, slices.Sorted(maps.Keys(signals)))
		}
		if _, twice := out[s]; twice {
			return nil, fmt.Errorf("%s: %s is given twice", flag, s)
		}
		out[s] = strings.TrimSpace(v)
	}
	return out, nil
}

// parse reads thresholds, ordered by signal. 0% and 100% turn one off.
func parse(flag, text string) ([]Threshold, error) {
	all, err := pairs(flag, text, "<")
	if err != nil {
		return nil, err
	}
	var out []Threshold
	for _, s := range slices.Sorted(maps.Keys(all)) {
		if all[s] == "0%" || all[s] == "100%" {
			continue
		}
		v, err := value(all[s])
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", flag, s, err)
		}
		if v.Quantity == "0" {
			return nil, fmt.Errorf("%s: eviction threshold %s must be positive: 0", flag, s)
		}
		out = append(out, Threshold{Signal: s, Value: v})
	}
	return out, nil
}

func value(text string) (Value, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		p, err := strconv.ParseFloat(number, 32)
		if err != nil || !(p > 0 && p <= 100) {
			return Value{}, fmt.Errorf("%q is not a percentage above 0%% and up to 100%%", text)
		}
		return Value{Part: float32(p) / 100}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return Value{}, fmt.Errorf("%q: %w", text, err)
	}
	if q.Sign() < 0 {
		return Value{}, fmt.Errorf("%q is negative", text)
	}
	return Value{Quantity: q.String()}, nil
}

// Reserved is what hard thresholds keep from pods, of this capacity: the node's allocatable is less by it.
func Reserved(thresholds []Threshold, capacity corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, t := range thresholds {
		if t.Grace != 0 || t.Signal != MemoryAvailable && t.Signal != NodeFsAvailable {
			continue
		}
		name := signals[t.Signal].resource
		if all, ok := capacity[name]; ok {
			out[name] = *t.Value.Of(&all)
		}
	}
	return out
}

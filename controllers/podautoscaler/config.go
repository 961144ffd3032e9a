// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"
	"time"
)

// Config holds kube-controller-manager's --horizontal-pod-autoscaler-* flags. A nil *Config means the defaults.
type Config struct {
	// SyncPeriod is the interval of passes over an autoscaler.
	SyncPeriod time.Duration
	// Tolerance is the allowed deviation of a usage from its target, as a ratio. An autoscaler's behavior overrides it.
	Tolerance float64
	// DownscaleStabilization is the stabilization window for scaling down. An autoscaler's behavior overrides it.
	DownscaleStabilization time.Duration
	// InitialReadinessDelay: a pod that became unready within this time after its start was never ready.
	// CPUInitialization: within this time after its start, a pod's CPU usage counts only if the pod has been ready for
	// a whole window.
	InitialReadinessDelay, CPUInitialization time.Duration
}

// Defaults are kube-controller-manager's.
func Defaults() Config {
	return Config{
		SyncPeriod:             15 * time.Second,
		Tolerance:              0.1,
		DownscaleStabilization: defaultWindow,
		InitialReadinessDelay:  30 * time.Second,
		CPUInitialization:      5 * time.Minute,
	}
}

// Validate returns one sentence for each error.
func (c *Config) Validate() error {
	if c == nil {
		return nil
	}
	var errs []error
	if c.SyncPeriod < time.Second {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-sync-period %s must be a second at least",
			c.SyncPeriod))
	}
	if !(c.Tolerance >= 0) || c.Tolerance > 1e6 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-tolerance %v must be 0 or more", c.Tolerance))
	}
	if c.DownscaleStabilization < 0 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-downscale-stabilization %s is negative",
			c.DownscaleStabilization))
	}
	if c.InitialReadinessDelay < 0 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-initial-readiness-delay %s is negative",
			c.InitialReadinessDelay))
	}
	if c.CPUInitialization < 0 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-cpu-initialization-period %s is negative",
			c.CPUInitialization))
	}
	return errors.Join(errs...)
}

// orDefaults returns c, or the defaults for nil.
func (c *Config) orDefaults() Config {
	if c == nil {
		return Defaults()
	}
	return *c
}

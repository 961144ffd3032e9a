// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"fmt"
	"time"
)

// Config are kube-controller-manager's --horizontal-pod-autoscaler-* flags. A nil *Config stands for the defaults.
type Config struct {
	// SyncPeriod is how often an autoscaler is looked at.
	SyncPeriod time.Duration
	// Tolerance is how far a usage may be from its target, as a part of it, before anything is done about it. The behavior of an
	// autoscaler goes before it.
	Tolerance float64
	// DownscaleStabilization is for how long a lower recommendation is not believed. The behavior of an autoscaler goes before it.
	DownscaleStabilization time.Duration
	// InitialReadinessDelay: a pod that became unready so soon after its start was never ready. CPUInitialization: for so long after its
	// start the cpu of a pod counts only when it has been ready for a whole window.
	InitialReadinessDelay, CPUInitialization time.Duration
}

// Defaults are what kube-controller-manager has by default.
func Defaults() Config {
	return Config{
		SyncPeriod: 15 * time.Second, Tolerance: 0.1, DownscaleStabilization: defaultWindow,
		InitialReadinessDelay: 30 * time.Second, CPUInitialization: 5 * time.Minute,
	}
}

// Validate returns one sentence per thing that is wrong.
func (c *Config) Validate() error {
	if c == nil {
		return nil
	}
	var errs []error
	if c.SyncPeriod < time.Second {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-sync-period %s must be a second at least", c.SyncPeriod))
	}
	if !(c.Tolerance >= 0) || c.Tolerance > 1e6 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-tolerance %v must be 0 or more", c.Tolerance))
	}
	if c.DownscaleStabilization < 0 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-downscale-stabilization %s is negative", c.DownscaleStabilization))
	}
	if c.InitialReadinessDelay < 0 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-initial-readiness-delay %s is negative", c.InitialReadinessDelay))
	}
	if c.CPUInitialization < 0 {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-cpu-initialization-period %s is negative", c.CPUInitialization))
	}
	return errors.Join(errs...)
}

// orDefaults is c, or the defaults.
func (c *Config) orDefaults() Config {
	if c == nil {
		return Defaults()
	}
	return *c
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"keelson/client"
	"keelson/controllers"
)

// ControllerOptions say which controllers run, and how.
type ControllerOptions = controllers.Options

// ControllerInfo describes one controller.
type ControllerInfo = controllers.Info

// KnownControllers are all there are.
func KnownControllers() []ControllerInfo { return controllers.Known() }

// ElectionOptions say how copies of a role agree on one that works.
type ElectionOptions struct {
	// Off: no election, this copy works.
	Off bool
	// LeaseDuration is for how long a leader that went silent is believed to live (default 15 s), RenewDeadline how long a leader tries
	// to renew its lease before it gives up (default 10 s), RetryPeriod how often all try (default 2 s).
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Namespace and Name are the lease's; default kube-system and the role's Kubernetes name.
	Namespace, Name string
	// Lock is what the copies agree by: "leases", the default, is the only kind.
	Lock string
	dog  *leaderelection.HealthzAdaptor // nil: nobody watches
}

// validate returns one sentence per thing that is wrong.
func (o ElectionOptions) validate() error {
	e := o.election("x")
	if o.Off {
		return nil
	}
	var errs []error
	if e.Lease <= e.Deadline {
		errs = append(errs, fmt.Errorf("--leader-elect-lease-duration %s must be longer than --leader-elect-renew-deadline %s", e.Lease, e.Deadline))
	}
	if e.Deadline <= e.Retry+e.Retry/5 { // waits vary by a fifth
		errs = append(errs, fmt.Errorf("--leader-elect-renew-deadline %s must be longer than 1.2 times --leader-elect-retry-period %s", e.Deadline, e.Retry))
	}
	if e.Lease < time.Second || e.Retry <= 0 {
		errs = append(errs, errors.New("--leader-elect-lease-duration must be a second at least, and --leader-elect-retry-period more than 0"))
	}
	if o.Lock != "" && o.Lock != "leases" {
		errs = append(errs, fmt.Errorf("--leader-elect-resource-lock %q: only \"leases\" is supported", o.Lock))
	}
	return errors.Join(errs...)
}

// election is that of the role whose lease is called name by default.
func (o ElectionOptions) election(name string) client.Election {
	if o.Name != "" {
		name = o.Name
	}
	return client.Election{Namespace: o.Namespace, Name: name, Lease: o.LeaseDuration, Deadline: o.RenewDeadline, Retry: o.RetryPeriod, WatchDog: o.dog}.Default()
}

// watch has the election watched by somebody who knows whether the lease that this copy holds is still renewed; nil without an election.
func (o *ElectionOptions) watch() *leaderelection.HealthzAdaptor {
	if !o.Off {
		o.dog = leaderelection.NewLeaderHealthzAdaptor(watchDogTolerance)
	}
	return o.dog
}

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

// ControllerOptions select and configure the controllers.
type ControllerOptions = controllers.Options

// ControllerInfo describes one controller.
type ControllerInfo = controllers.Info

// KnownControllers lists all controllers.
func KnownControllers() []ControllerInfo { return controllers.Known() }

// ElectionOptions configure leader election among the instances of a role.
type ElectionOptions struct {
	// Off disables leader election: this instance always works.
	Off bool
	// LeaseDuration is how long a silent leader keeps its lease (default 15 s), RenewDeadline how long it tries to
	// renew it before it gives up (default 10 s), RetryPeriod the time between tries (default 2 s).
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Namespace and Name are the lease's; default: kube-system and the role's name in Kubernetes.
	Namespace, Name string
	// Lock is the resource lock; "leases", the default, is the only kind.
	Lock     string
	watchdog *leaderelection.HealthzAdaptor // health check of the election; nil: none
}

// validate returns one sentence for each error.
func (o ElectionOptions) validate() error {
	election := o.election("x")
	if o.Off {
		return nil
	}
	var errs []error
	if election.Lease <= election.Deadline {
		errs = append(errs,
			fmt.Errorf("--leader-elect-lease-duration %s must be longer than --leader-elect-renew-deadline %s",
				election.Lease, election.Deadline))
	}
	if election.Deadline <= election.Retry+election.Retry/5 { // waits have a jitter of one fifth
		errs = append(errs,
			fmt.Errorf("--leader-elect-renew-deadline %s must be longer than 1.2 times --leader-elect-retry-period %s",
				election.Deadline, election.Retry))
	}
	if election.Lease < time.Second || election.Retry <= 0 {
		errs = append(errs,
			errors.New("--leader-elect-lease-duration must be a second at least, and --leader-elect-retry-period "+
				"more than 0"))
	}
	if o.Lock != "" && o.Lock != "leases" {
		errs = append(errs, fmt.Errorf("--leader-elect-resource-lock %q: only \"leases\" is supported", o.Lock))
	}
	return errors.Join(errs...)
}

// election returns the client's settings, with name as the default lease name.
func (o ElectionOptions) election(name string) client.Election {
	if o.Name != "" {
		name = o.Name
	}
	return client.Election{
		Namespace: o.Namespace,
		Name:      name,
		Lease:     o.LeaseDuration,
		Deadline:  o.RenewDeadline,
		Retry:     o.RetryPeriod,
		WatchDog:  o.watchdog,
	}.Default()
}

// watch creates the health check of the election, which fails when this leader's lease is no longer renewed; nil
// without an election.
func (o *ElectionOptions) watch() *leaderelection.HealthzAdaptor {
	if !o.Off {
		o.watchdog = leaderelection.NewLeaderHealthzAdaptor(watchdogTolerance)
	}
	return o.watchdog
}

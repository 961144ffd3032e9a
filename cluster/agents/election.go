// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"keelson/client"
	"keelson/lib/option"
)

// Election configures leader election among the instances of a role.
type Election struct {
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

// Validate returns one sentence for each error.
func (o Election) Validate() error {
	election := o.For("x")
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

// For returns the client's Settings, with name as the default lease name.
func (o Election) For(name string) client.Election {
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

// Watch creates the health check of the election, which fails when this leader's lease is no longer renewed; nil
// without an election.
func (o *Election) Watch() *leaderelection.HealthzAdaptor {
	if !o.Off {
		o.watchdog = leaderelection.NewLeaderHealthzAdaptor(watchdogTolerance)
	}
	return o.watchdog
}

// Rows configure leader election of a role by the given lease.
func (o *Election) Rows(lease string) []option.Row {
	return []option.Row{
		option.Not(&o.Off, "leader-elect",
			"work only while holding a lease, so that of several copies one works"),
		option.New(&o.LeaseDuration, "leader-elect-lease-duration", 15*time.Second,
			"how long other candidates wait after the last renewal before they acquire the lease"),
		option.New(&o.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
			"how long the leader retries a failed renewal before it stops leading"),
		option.New(&o.RetryPeriod, "leader-elect-retry-period", 2*time.Second,
			"interval between attempts to acquire or renew the lease"),
		option.New(&o.Lock, "leader-elect-resource-lock", "leases",
			"type of the lock object; only leases is supported"),
		option.New(&o.Name, "leader-elect-resource-name", lease, "name of the lease"),
		option.New(&o.Namespace, "leader-elect-resource-namespace", "kube-system", "namespace of the lease"),
	}
}

// Configz is the part of a configuration at /configz.
func (o Election) Configz(lease string) Settings {
	e := o.For(lease)
	return Settings{
		"LeaderElect":       !o.Off,
		"LeaseDuration":     e.Lease.String(),
		"RenewDeadline":     e.Deadline.String(),
		"RetryPeriod":       e.Retry.String(),
		"ResourceLock":      cmp.Or(o.Lock, "leases"),
		"ResourceName":      e.Name,
		"ResourceNamespace": cmp.Or(e.Namespace, "kube-system"),
	}
}

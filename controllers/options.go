// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"keelson/controllers/attachdetach"
	"keelson/controllers/nodeipam"
	"keelson/controllers/nodelifecycle"
	"keelson/controllers/podautoscaler"
)

// Options are flags of kube-controller-manager. The zero value is the default.
type Options struct {
	// Controllers selects the controllers: "*" are those that are on by default, NAME or an alias enables one, -NAME
	// disables it. Earlier items have precedence over later ones, and names over "*". nil is "*".
	Controllers []string
	// Workers is the number of concurrent syncs, by Info.Syncs. Others have their default.
	Workers map[string]int
	// Nodes configures when nodes are unhealthy, and the eviction rate.
	Nodes nodelifecycle.Config
	// TerminatedPods is the number of finished pods to keep; the oldest ones above it are deleted. Default 12,500;
	// negative: all.
	TerminatedPods int
	// Attach configures the detachment of volumes.
	Attach attachdetach.Config
	// LegacyTokenPeriod is how long a legacy service-account token must be unused before it is invalidated, and then
	// invalid before its secret is deleted. Default a year.
	LegacyTokenPeriod time.Duration
	// CertificateLife is the maximum lifetime of signed certificates. Default a year.
	CertificateLife time.Duration
	// PodRanges configures the allocation of pod CIDRs.
	PodRanges nodeipam.Config
	// Autoscaling configures the HorizontalPodAutoscaler controller; nil: the default.
	Autoscaling *podautoscaler.Config
}

// unsupported are Kubernetes controllers that Keelson does not have. Disabling them is accepted.
var unsupported = []string{
	"node-route-controller", "route", "cloud-node-lifecycle-controller", "cloud-node-lifecycle",
	"storageversion-garbage-collector-controller", "selinux-warning-controller",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller", "podcertificaterequest-cleaner-controller",
}

// Info describes one controller.
type Info struct {
	Name, Alias string
	// Off controllers run only when they are named.
	Off     bool
	Workers int
	// Syncs X: the flag --concurrent-X-syncs sets Workers. Empty: no flag.
	Syncs string
}

// Known lists all controllers in the order of the table.
func Known() []Info {
	out := make([]Info, len(table))
	for i, r := range table {
		out[i] = Info{
			Name:    r.name,
			Alias:   r.alias,
			Off:     r.offByDefault,
			Workers: r.workers,
			Syncs:   r.syncs,
		}
	}
	return out
}

// Default returns o with the defaults set.
func (o Options) Default() Options {
	o.Nodes = o.Nodes.Default()
	if o.TerminatedPods == 0 {
		o.TerminatedPods = 12500
	}
	if o.Controllers == nil {
		o.Controllers = []string{"*"}
	}
	return o
}

// Validate returns one sentence for each error.
func (o Options) Validate() error {
	var errs []error
	for _, c := range o.Controllers {
		if off, ok := strings.CutPrefix(c, "-"); ok && slices.Contains(unsupported, off) {
			continue
		}
		if c != "*" && !slices.ContainsFunc(table, func(r row) bool { return r.matches(strings.TrimPrefix(c, "-")) }) {
			errs = append(errs, fmt.Errorf("--controllers: %q is not in the list of known controllers",
				strings.TrimPrefix(c, "-")))
		}
	}
	for syncs, n := range o.Workers {
		if !slices.ContainsFunc(table, func(r row) bool { return r.syncs == syncs }) {
			errs = append(errs, fmt.Errorf("no controller has the flag --concurrent-%s-syncs", syncs))
		}
		if n < 1 || n > 1000 {
			errs = append(errs, fmt.Errorf("--concurrent-%s-syncs %d is not between 1 and 1000", syncs, n))
		}
	}
	if o.Nodes.Grace < 0 {
		errs = append(errs, fmt.Errorf("--node-monitor-grace-period %s is negative", o.Nodes.Grace))
	}
	if o.LegacyTokenPeriod < 0 {
		errs = append(errs, fmt.Errorf("--legacy-service-account-token-clean-up-period %s is negative",
			o.LegacyTokenPeriod))
	}
	if o.CertificateLife < 0 {
		errs = append(errs, fmt.Errorf("--cluster-signing-duration %s is negative", o.CertificateLife))
	}
	if o.Nodes.StartupGrace < 0 {
		errs = append(errs, fmt.Errorf("--node-startup-grace-period %s is negative", o.Nodes.StartupGrace))
	}
	if u := o.Nodes.UnhealthyThreshold; u < 0 || u > 1 {
		errs = append(errs, fmt.Errorf("--unhealthy-zone-threshold %v is not between 0 and 1", u))
	}
	return errors.Join(append(errs, o.PodRanges.Validate(), o.Autoscaling.Validate())...)
}

func (r row) matches(name string) bool { return name != "" && (name == r.name || name == r.alias) }

// runs reports whether the controller of r is selected.
func (o Options) runs(r row) bool {
	star := false
	for _, c := range o.Controllers {
		if r.matches(c) {
			return true
		}
		if off, ok := strings.CutPrefix(c, "-"); ok && r.matches(off) {
			return false
		}
		star = star || c == "*"
	}
	return star && !r.offByDefault
}

func (o Options) workers(r row) int {
	if n, ok := o.Workers[r.syncs]; ok && r.syncs != "" {
		return n
	}
	return r.workers
}

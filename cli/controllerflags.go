// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"keelson/cluster"
)

// controllerFlags are the flags about controllers that `up` and `controller-manager` share; they are kube-controller-manager's, by name
// and meaning.
func controllerFlags(fl *pflag.FlagSet, o *cluster.ControllerOptions) {
	all := cluster.KnownControllers()
	fl.StringSliceVar(&o.Controllers, "controllers", []string{"*"}, controllersUsage(all))
	seen := map[string]bool{}
	for _, c := range all {
		if c.Syncs == "" || seen[c.Syncs] {
			continue
		}
		seen[c.Syncs] = true
		fl.Var(workersFlag{o, c.Syncs, c.Workers}, "concurrent-"+c.Syncs+"-syncs", "how many objects the "+c.Name+" works on at once")
	}
	fl.DurationVar(&o.NodeGrace, "node-monitor-grace-period", 40*time.Second, "how long a node may be silent before it is Unknown")
	fl.Var((*prefixes)(&o.PodRanges.Cluster), "cluster-cidr", "give nodes that bring no range of pod addresses one out of `CIDR`, or out of one of each IP family, separated by a comma")
	fl.IntVar(&o.PodRanges.Bits4, "node-cidr-mask-size-ipv4", 24, "the size of these ranges")
	fl.IntVar(&o.PodRanges.Bits6, "node-cidr-mask-size-ipv6", 64, "the same, of IPv6")
	o.TerminatedPods = 12500
	fl.Var((*threshold)(&o.TerminatedPods), "terminated-pod-gc-threshold", "keep `N` finished pods before the oldest are deleted; 0 or less: all")
}

func controllersUsage(all []cluster.ControllerInfo) string {
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
	usage := "`NAMES` of the controllers to run, separated by commas: * for those that are on by default, NAME for one, -NAME for all but one." +
		"\nOn by default, with older names: " + strings.Join(on, ", ")
	if len(off) > 0 {
		usage += "\nOff by default: " + strings.Join(off, ", ")
	}
	return usage
}

// prefixes are CIDRs, separated by commas.
type prefixes []netip.Prefix

// String is the flag's value.
func (p *prefixes) String() string {
	var texts []string
	for _, x := range *p {
		texts = append(texts, x.String())
	}
	return strings.Join(texts, ",")
}

// Set reads the flag's value.
func (p *prefixes) Set(text string) error {
	*p = nil
	for one := range strings.SplitSeq(text, ",") {
		x, err := netip.ParsePrefix(one)
		if err != nil {
			return fmt.Errorf("%q is not a CIDR", one)
		}
		*p = append(*p, x.Masked())
	}
	return nil
}

// Type is how the usage text names it.
func (*prefixes) Type() string { return "strings" }

// threshold is a number of which 0 means the same as -1.
type threshold int

// String is the flag's value.
func (t *threshold) String() string { return strconv.Itoa(int(*t)) }

// Set reads the flag's value.
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

// Type is how the usage text names it.
func (*threshold) Type() string { return "int32" }

// workersFlag is a number of workers.
type workersFlag struct {
	o     *cluster.ControllerOptions
	syncs string
	usual int
}

// String is the flag's value.
func (w workersFlag) String() string {
	if w.o == nil {
		return "0"
	}
	if n, ok := w.o.Workers[w.syncs]; ok {
		return strconv.Itoa(n)
	}
	return strconv.Itoa(w.usual)
}

// Set reads the flag's value.
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

// Type is how the usage text names it.
func (workersFlag) Type() string { return "int32" }

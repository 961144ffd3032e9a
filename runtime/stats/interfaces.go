// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"os"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
)

// networkUsage reads the counters of the pod's interfaces; nil when it cannot, because the pod is being removed.
func networkUsage(ns string, now time.Time) *runtimeapi.NetworkUsage {
	all := interfaces(ns)
	if all == nil {
		return nil
	}
	out := &runtimeapi.NetworkUsage{Timestamp: now.UnixNano()}
	for _, counters := range all {
		if counters.name == "lo" {
			continue
		}
		i := &runtimeapi.NetworkInterfaceUsage{
			Name:     counters.name,
			RxBytes:  value(counters.rx[0]),
			RxErrors: value(counters.rx[2]),
			TxBytes:  value(counters.tx[0]),
			TxErrors: value(counters.tx[2]),
		}
		if out.DefaultInterface == nil || counters.name == "eth0" {
			out.DefaultInterface = i
		}
		out.Interfaces = append(out.Interfaces, i)
	}
	return out
}

// counters holds bytes, packets, errors and drops of one interface, received and sent.
type counters struct {
	name   string
	rx, tx [4]uint64
}

// interfaces reads the counters of the interfaces of a network namespace; nil when it cannot.
func interfaces(ns string) []counters {
	var raw []byte
	err := linux.InNetwork(ns, func() (err error) {
		raw, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return nil
	}
	return parseInterfaces(string(raw))
}

// parseInterfaces reads /proc/net/dev: two lines of heading, then "name:" with eight numbers received and eight sent,
// the first four of which are bytes, packets, errors, dropped.
func parseInterfaces(dev string) []counters {
	var out []counters
	for line := range strings.Lines(dev) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 12 {
			continue
		}
		c := counters{name: strings.TrimSpace(name)}
		for i := range 4 {
			c.rx[i], _ = strconv.ParseUint(f[i], 10, 64) // the kernel writes numbers
			c.tx[i], _ = strconv.ParseUint(f[8+i], 10, 64)
		}
		out = append(out, c)
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
)

// The wire format of pressure stall information in the summary API.
type (
	pressure struct {
		Full stall `json:"full"`
		Some stall `json:"some"`
	}
	stall struct {
		Total  uint64  `json:"total"`
		Avg10  float64 `json:"avg10"`
		Avg60  float64 `json:"avg60"`
		Avg300 float64 `json:"avg300"`
	}
)

// pressureOf is what a runtime says of one resource; nil: nothing.
func pressureOf(psi *runtimeapi.PsiStats) *pressure {
	if psi == nil {
		return nil
	}
	of := func(d *runtimeapi.PsiData) stall {
		return stall{
			Total:  d.GetTotal(),
			Avg10:  d.GetAvg10(),
			Avg60:  d.GetAvg60(),
			Avg300: d.GetAvg300(),
		}
	}
	return &pressure{Full: of(psi.GetFull()), Some: of(psi.GetSome())}
}

// ioOf is the pressure of disks; nil: it is not known.
func ioOf(usage *runtimeapi.IoUsage) *ioUsage {
	psi := pressureOf(usage.GetPsi())
	if psi == nil {
		return nil
	}
	return &ioUsage{Time: stamp(usage.GetTimestamp()), PSI: psi}
}

// machinePressure is what the kernel says of one of the machine's resources; nil: nothing.
func machinePressure(p *linux.Pressure) *pressure {
	if p == nil {
		return nil
	}
	of := func(s linux.Stall) stall {
		return stall{
			Total:  s.Total,
			Avg10:  s.Avg10,
			Avg60:  s.Avg60,
			Avg300: s.Avg300,
		}
	}
	return &pressure{Full: of(p.Full), Some: of(p.Some)}
}

// pressure adds cAdvisor's metrics of how long tasks waited for a resource: all of them, or some.
func (c *scrape) pressure(of owner, resource string, psi *runtimeapi.PsiStats, at time.Time) {
	if psi == nil {
		return
	}
	const perMicrosecond = 1e-6
	name := "container_pressure_" + resource
	c.measure(name+"_stalled_seconds_total", "counter", "Total time duration no tasks in the container could make "+
		"progress due to "+resource+" congestion.", of.labels(""), new(psi.GetFull().GetTotal()), perMicrosecond, at)
	c.measure(name+"_waiting_seconds_total", "counter", "Total time duration tasks in the container have waited due "+
		"to "+resource+" congestion.", of.labels(""), new(psi.GetSome().GetTotal()), perMicrosecond, at)
}

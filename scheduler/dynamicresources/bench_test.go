// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"fmt"
	"testing"

	"keelson/scheduler/schedtest"
)

// BenchmarkClaims places pods with a claim of one device each on 1,000 nodes with 8 devices, half of which are taken.
func BenchmarkClaims(b *testing.B) {
	world := newWorld(b)
	for n := range 1000 {
		node := fmt.Sprintf("n%d", n)
		s := slice(node)
		for d := range 8 {
			s.Spec.Devices = append(s.Spec.Devices, device(fmt.Sprintf("d%d", d), "model", "big"))
			if d%2 == 0 {
				world.known.ClaimChanged(nil, having(claim(fmt.Sprintf("%s-%d", node, d)), node, fmt.Sprintf("d%d", d)))
			}
		}
		world.add(s)
		world.Add(schedtest.Node(node, schedtest.Allocatable("cpu", "64")))
	}
	for i := range b.N {
		world.add(claim(fmt.Sprint("c", i), exactly("r", "gpu", 1, `device.attributes["`+driver+`"].model == "big"`)))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		a := world.Try(schedtest.Pod(fmt.Sprint("p", i), using(fmt.Sprint("c", i))))
		if a.Chosen == nil {
			b.Fatal(a.Message())
		}
		if err := world.plugin.Reserve(b.Context(), a.Cycle, a.Pod, a.Chosen); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
}

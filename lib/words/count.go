// SPDX-License-Identifier: Apache-2.0

package words

import "fmt"

// Count returns a number and a noun: "1 node", "2 nodes". The noun's plural ends with s.
func Count[N int | int32 | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Verb returns the form of a verb for n things: "fits" for one, "fit" for others.
func Verb[N int | int32 | int64](n N, one, others string) string {
	if n == 1 {
		return one
	}
	return others
}

// Bytes returns a size in units of 1,024: "7.3 MiB".
func Bytes(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	default:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	}
}

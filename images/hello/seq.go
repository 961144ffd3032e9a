// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

var errSeqUsage = errors.New("usage: seq [-w] [-s SEPARATOR] [FIRST [INCREMENT]] LAST")

// seq prints numbers from FIRST (1) to LAST, with as many decimals as the arguments have.
func seq(args []string, std stdio) int {
	wide := false
	sep := "\n"
	words := args[1:]
	for len(words) > 0 {
		if words[0] == "-w" {
			wide = true
			words = words[1:]
		} else if words[0] == "-s" && len(words) > 1 {
			sep = words[1]
			words = words[2:]
		} else {
			break // a number can begin with a minus
		}
	}
	if len(words) == 0 || len(words) > 3 {
		return complain(std, "seq", errSeqUsage)
	}
	numbers := []float64{}
	decimals := 0
	for _, w := range words {
		f, err := strconv.ParseFloat(w, 64)
		if err != nil || math.Abs(f) > 1<<53 { // larger ones are not exact
			return complain(std, "seq", fmt.Errorf("%q is not a number that seq supports; %w", w, errSeqUsage))
		}
		if _, after, ok := strings.Cut(w, "."); ok {
			decimals = max(decimals, len(after))
		}
		numbers = append(numbers, f)
	}
	first := 1.0
	step := 1.0
	last := numbers[len(numbers)-1]
	if len(numbers) > 1 {
		first = numbers[0]
	}
	if len(numbers) > 2 {
		step = numbers[1]
	}
	if step == 0 {
		return complain(std, "seq", errors.New("the increment must not be zero"))
	}
	width := 0
	if wide {
		width = max(len(decimal(first, decimals)), len(decimal(last, decimals)))
	}
	out := bufio.NewWriter(std.out)
	for i := 0.0; ; i++ {
		v := first + i*step
		if over := (v - last) / step; over > 1e-9 { // more than the error of the sum
			break
		}
		if i > 0 {
			if _, err := out.WriteString(sep); err != nil {
				return complain(std, "seq", err)
			}
		}
		fmt.Fprintf(out, "%0*.*f", width, decimals, v)
	}
	if (last-first)/step >= 0 {
		fmt.Fprintln(out)
	}
	if err := out.Flush(); err != nil {
		return complain(std, "seq", err)
	}
	return 0
}

func decimal(f float64, decimals int) string { return strconv.FormatFloat(f, 'f', decimals, 64) }

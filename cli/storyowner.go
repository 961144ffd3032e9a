// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	podapi "keelson/api/core/pod"
	"keelson/timeline/ask"
)

// pods are those of the owner of.
type pods struct {
	of string
	*ask.Pods
}

// target is the pod that an argument names. For an owner it is the pod in the worst state, else the newest.
func (f *storyFlags) target(ctx context.Context, arg string) (name string, all pods, err error) {
	word, of, _ := strings.Cut(arg, "/")
	i := slices.IndexFunc(ask.Owners, func(o ask.Owner) bool { return slices.Contains(o.Words, word) })
	if i < 0 || of == "" {
		name, err = f.pod(arg)
		return name, pods{}, err
	}
	if _, err := f.pod(of); err != nil { // checks the output format
		return "", pods{}, err
	}
	owned, err := f.caller().Owned(ctx, &ask.Owners[i], of, arg)
	if err != nil {
		return "", pods{}, err
	}
	return owned.List[0].Name, pods{arg, owned}, nil
}

// print lists all pods of the owner and marks the one whose story is shown. It prints nothing for a single pod or in
// JSON.
func (p pods) print(out io.Writer, form, shown string) {
	if p.of == "" || form != "" {
		return
	}
	_, _ = fmt.Fprintf(out, "\npods of %s, those worst off first, then the newest:\n", p.of)
	var lines strings.Builder // a screen wraps whole lines, and a table is written in pieces
	table := tabwriter.NewWriter(&lines, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "   NAME\tREADY\tSTATUS\tNODE\tAGE\t") // a strings.Builder does not fail
	for i := range p.List {
		pod := &p.List[i]
		ready := "no"
		mark := ""
		if podapi.Ready(pod) {
			ready = "yes"
		}
		if pod.Name == shown {
			mark = "<- shown above"
		}
		_, _ = fmt.Fprintf(table, "   %s\t%s\t%s\t%s\t%v\t%s\n", pod.Name, ready, ask.StatusOf(pod),
			cmp.Or(pod.Spec.NodeName, "-"),
			time.Since(pod.CreationTimestamp.Time).Round(time.Second), mark)
	}
	_ = table.Flush()
	_, _ = io.WriteString(out, lines.String()) // an error means that the terminal is gone
	if p.Lacks != "" {
		_, _ = fmt.Fprintf(out, "   and more cannot be created: %s\n", p.Lacks)
	}
	if p.Waits != "" {
		_, _ = fmt.Fprintf(out, "   %s\n", p.Waits)
	}
}

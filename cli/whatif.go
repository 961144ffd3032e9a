// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"keelson/cluster"
)

func whatIfCommand(std Stdio) *cobra.Command {
	var f storyFlags
	var w cluster.WhatIf
	var file string
	c := &cobra.Command{
		Use:   "whatif [-f FILE] [--drain NODE] [--remove NODE] [--add-nodes N,cpu=AMOUNT,memory=AMOUNT]",
		Short: "Where pods would go, with a manifest or other nodes, without touching anything",
		Long: "Run the scheduler on a copy of the cluster's state as it is now: where would each pod of a manifest " +
			"go, and those that wait already, or that\n" +
			"leave a node; what stays pending and why, and what would be preempted. Nothing is written.",
		Args: none,
		Example: "  keelson whatif -f deployment.yaml\n" +
			"  keelson whatif --drain node-1\n" +
			"  keelson whatif -f deployment.yaml --add-nodes 3,cpu=8,memory=32Gi",
	}
	f.add(c)
	c.Flags().StringVarP(&file, "filename", "f", "", "`FILE` with Pods, Deployments, StatefulSets, DaemonSets, Jobs, "+
		"CronJobs and so on, and what they depend on; - is the standard input")
	c.Flags().StringArrayVar(&w.Drain, "drain", nil, "cordon `NODE` and move its pods; may be repeated")
	c.Flags().StringArrayVar(&w.Remove, "remove", nil, "take `NODE` away; may be repeated")
	c.Flags().StringVar(&w.Add, "add-nodes", "",
		"add nodes: `N,cpu=AMOUNT,memory=AMOUNT`; also other resources, and label:KEY=VALUE")
	c.Flags().StringVar(&w.Scheduler.ConfigFile, "scheduler-config", "",
		"`FILE` with the KubeSchedulerConfiguration that the cluster's scheduler uses, if it has one")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if _, err := f.pod(""); err != nil { // checks the output format
			return err
		}
		if file == "" && len(w.Drain)+len(w.Remove) == 0 && w.Add == "" {
			return errors.New("nothing is asked: give -f FILE, --drain, --remove or --add-nodes")
		}
		w.Namespace = f.namespace
		w.Kubeconfig = f.kubeconfig
		w.DataDir = cluster.DataDir(f.dataDir)
		switch file {
		case "":
		case "-":
			w.Manifest = std.In
		default:
			in, err := os.Open(file) // the user names the file
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }()
			w.Manifest = in
		}
		answer, err := w.Ask(c.Context())
		if err != nil {
			return err
		}
		if f.output == "json" {
			return json.NewEncoder(std.Out).Encode(answer)
		}
		return printWhatIf(std.Out, answer)
	}
	return c
}

// mostOutcomes are printed pod by pod; more are summarized by workload and node.
const mostOutcomes = 40

// reasonOf explains one outcome: its reason and the scheduler's decision.
func reasonOf(o *cluster.WhatIfOutcome) string {
	reason, _, _ := strings.Cut(o.Reason, " preemption: ")
	reason = strings.TrimSuffix(reason, ".")
	var notes []string
	switch d := o.Decision; {
	case d == nil:
	case d.Preemption != nil:
		for _, v := range d.Preemption.Victims {
			notes = append(notes, "preempts "+v.Namespace+"/"+v.Name)
		}
	case o.Node == "":
		notes = d.Fixes
	default:
		notes = []string{fmt.Sprintf("%d of %d nodes fit", d.Fit, d.Nodes)}
	}
	return strings.TrimPrefix(strings.Join(append([]string{reason}, notes...), "; "), "; ")
}

// printWhatIf prints where pods would go.
func printWhatIf(out io.Writer, a *cluster.WhatIfAnswer) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "POD\tWHY\tNODE\tREASON") // Flush returns the error
	counts := map[string]int{}
	rows := []string(nil)
	placed := 0
	victims := 0
	for i := range a.Outcomes {
		o := &a.Outcomes[i]
		name := o.Namespace + "/" + o.Name
		node := o.Node
		if node == "" {
			node = "<none>"
		} else {
			placed++
		}
		if o.Decision != nil && o.Decision.Preemption != nil {
			victims += o.Decision.Preemption.Count
		}
		reason := reasonOf(o)
		if len(a.Outcomes) > mostOutcomes && o.Workload != "" {
			name = o.Namespace + "/" + o.Workload
			if o.Node != "" && (o.Decision == nil || o.Decision.Preemption == nil) {
				reason = ""
			}
		}
		row := strings.Join([]string{name, o.Why, node, reason}, "\t")
		if counts[row]++; counts[row] == 1 {
			rows = append(rows, row)
		}
	}
	for _, row := range rows {
		if n := counts[row]; n > 1 {
			name, rest, _ := strings.Cut(row, "\t")
			row = fmt.Sprintf("%s (%d pods)\t%s", name, n, rest)
		}
		_, _ = fmt.Fprintln(t, row)
	}
	for _, l := range a.Lost {
		_, _ = fmt.Fprintf(t, "%s/%s\tlost\t<none>\t%s\n", l.Namespace, l.Name, l.Why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range a.Notes {
		if _, err := fmt.Fprintln(out, "note:", note); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%d placed, %d pending, %d preempted, %d lost; %d nodes\n", placed,
		len(a.Outcomes)-placed, victims, len(a.Lost), a.Nodes)
	return err
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"keelson/api/decisions"
	"keelson/cluster/scheduling"
	"keelson/cluster/simulation"
	"keelson/lib/words"
)

func whatIfCommand(std Stdio) *cobra.Command {
	var f storyFlags
	var question simulation.Question
	var scheduler scheduling.Options
	var file string
	cmd := &cobra.Command{
		Use:   "whatif [-f FILE] [--drain NODE] [--remove NODE] [--add-nodes N,cpu=AMOUNT,memory=AMOUNT]",
		Short: "Where pods would go, with a manifest or other nodes, without touching anything",
		Long: "Run the scheduler on a copy of the cluster's state as it is now: where would each pod of a manifest " +
			"go, and those that wait already, or that leave a node;" +
			" what stays pending and why, and what would be preempted. Nothing is written.",
		Args: none,
		Example: "  keelson whatif -f deployment.yaml\n" +
			"  keelson whatif --drain node-1\n" +
			"  keelson whatif -f deployment.yaml --add-nodes 3,cpu=8,memory=32Gi",
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&file, "filename", "f", "",
		"`FILE` with Pods, Deployments, StatefulSets, DaemonSets, Jobs, "+
			"CronJobs and so on, and what they depend on; - is the standard input")
	cmd.Flags().StringArrayVar(&question.Drain, "drain", nil, "cordon `NODE` and move its pods; may be repeated")
	cmd.Flags().StringArrayVar(&question.Remove, "remove", nil, "take `NODE` away; may be repeated")
	cmd.Flags().StringVar(&question.Add, "add-nodes", "",
		"add nodes: `N,cpu=AMOUNT,memory=AMOUNT`; also other resources, and label:KEY=VALUE")
	cmd.Flags().StringVar(&scheduler.ConfigFile, "scheduler-config", "",
		"`FILE` with the KubeSchedulerConfiguration that the cluster's scheduler uses, if it has one")
	cmd.RunE = func(command *cobra.Command, _ []string) error {
		if _, err := f.pod(""); err != nil { // checks the output format
			return err
		}
		if file == "" && len(question.Drain)+len(question.Remove) == 0 && question.Add == "" {
			return errors.New("nothing is asked: give -f FILE, --drain, --remove or --add-nodes")
		}
		question.Namespace = f.namespace
		config, err := f.rest()
		if err != nil {
			return err
		}
		if err := readManifest(&question, file, std.In); err != nil {
			return err
		}
		answer, err := simulation.Ask(command.Context(), config, &question, scheduler)
		if err != nil {
			return err
		}
		if f.output == "json" {
			return printJSON(std.Out, answer)
		}
		return printWhatIf(std.screen(), answer)
	}
	return cmd
}

// readManifest reads the manifest of a question from a file, or from in for "-".
func readManifest(question *simulation.Question, file string, in io.Reader) error {
	switch file {
	case "":
		return nil
	case "-":
		return question.ReadManifest(in)
	}
	opened, err := os.Open(file) // the user names the file
	if err != nil {
		return err
	}
	defer func() { _ = opened.Close() }()
	return question.ReadManifest(opened)
}

// noNode stands for the node of a pod that gets none, as in kubectl's tables.
const noNode = "<none>"

// mostOutcomes are printed pod by pod; more are summarized by workload and node.
const mostOutcomes = 40

// reasonOf explains one outcome: its reason and the scheduler's decision.
func reasonOf(o *simulation.Outcome) string {
	reason := strings.TrimSuffix(cmp.Or(o.NoFit, o.Reason), ".")
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
		notes = []string{fitting(d)}
	}
	return strings.TrimPrefix(strings.Join(append([]string{reason}, notes...), "; "), "; ")
}

// fitting says how many nodes fit.
func fitting(d *decisions.Attempt) string {
	return fmt.Sprintf("%d of %s %s", d.Feasible, words.Count(d.Nodes, "node"), words.Verb(d.Feasible, "fits", "fit"))
}

// printOutcomes prints a row for each pod.
func printOutcomes(out *screen, cells [][]string) error {
	if len(cells) == 0 {
		_, err := fmt.Fprintln(out, "no pod waits for a node; -f FILE places those of a manifest")
		return err
	}
	return printStyled(out, []string{"POD", "WHY", "NODE", "REASON"}, cells, func(row int) string {
		if cells[row][2] == noNode {
			return words.Red
		}
		return ""
	})
}

// printWhatIf prints where pods would go.
func printWhatIf(out *screen, answer *simulation.Answer) error {
	counts := map[string]int{}
	rows := []string(nil)
	placed := 0
	victims := 0
	for i := range answer.Outcomes {
		outcome := &answer.Outcomes[i]
		name := outcome.Namespace + "/" + outcome.Name
		node := outcome.Node
		if node == "" {
			node = noNode
		} else {
			placed++
		}
		if outcome.Decision != nil && outcome.Decision.Preemption != nil {
			victims += int(outcome.Decision.Preemption.Count)
		}
		reason := reasonOf(outcome)
		if len(answer.Outcomes) > mostOutcomes && outcome.Workload != "" {
			name = outcome.Namespace + "/" + outcome.Workload
			if outcome.Node != "" && (outcome.Decision == nil || outcome.Decision.Preemption == nil) {
				reason = ""
			}
		}
		row := strings.Join([]string{name, outcome.Why, node, reason}, "\t")
		if counts[row]++; counts[row] == 1 {
			rows = append(rows, row)
		}
	}
	var cells [][]string
	for _, row := range rows {
		cell := strings.Split(row, "\t")
		if n := counts[row]; n > 1 {
			cell[0] = fmt.Sprintf("%s (%d pods)", cell[0], n)
		}
		cells = append(cells, cell)
	}
	for _, l := range answer.Lost {
		cells = append(cells, []string{l.Namespace + "/" + l.Name, "lost", noNode, l.Why})
	}
	if err := printOutcomes(out, cells); err != nil {
		return err
	}
	for _, note := range answer.Notes {
		if _, err := fmt.Fprintln(out, "note:", note); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%d placed, %d pending, %d preempted, %d lost; %s\n", placed,
		len(answer.Outcomes)-placed, victims, len(answer.Lost), words.Count(answer.Nodes, "node"))
	return err
}

// SPDX-License-Identifier: Apache-2.0

// Package bench measures the figures of docs/performance.md on this machine: each scenario starts the real program as a
// process of its own, drives it like a client and reports numbers. cli runs it as `keelson bench`. It only compares
// results with the budgets of the plan, and changes nothing outside its own directory.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"keelson/client"
	"keelson/cluster/datadir"
)

// Result is one figure. Limit is its budget; 0: none. Higher means that larger values are better.
type Result struct {
	Scenario string  `json:"scenario"`
	Figure   string  `json:"figure"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Limit    float64 `json:"limit,omitempty"`
	Higher   bool    `json:"higher,omitempty"`
}

// ok reports whether the figure is within its budget.
func (r Result) ok() bool {
	return r.Limit == 0 || r.Higher && r.Value >= r.Limit || !r.Higher && r.Value <= r.Limit
}

// scenario is one measurement, on a new cluster.
type scenario struct {
	name string
	args []string // arguments of `keelson up`
	run  func(ctx context.Context, e *env) ([]Result, error)
	root bool // needs real containers
	// alone: only the API server runs, without node, scheduler and controllers.
	alone bool
}

var scenarios = []scenario{
	{name: "start", run: startScenario},
	{name: "replicaset", run: replicaSetScenario, root: true},
	{name: "pods50", run: podsScenario, root: true},
	{name: "idle", run: idleScenario},
	{name: "schedule", args: []string{"--fake-nodes", "1000"}, run: scheduleScenario},
	{name: "workloads", args: []string{"--fake-nodes", "1000"}, run: workloadsScenario},
	{name: "endpoints", args: []string{"--fake-nodes", "10"}, run: endpointsScenario},
	{name: "network", run: networkScenario, root: true},
	{name: "services", args: ownServices, run: servicesScenario, root: true},
	{
		name: "heartbeats",
		args: []string{"--fake-nodes", "5000", "--fake-nodes-heartbeat", "10s"},
		run:  heartbeatsScenario,
	},
	{name: "nodeloss", args: []string{"--fake-nodes", "5000", "--node-eviction-rate", "2"}, run: nodeLossScenario},
	{name: "api", alone: true, run: apiScenario},
}

// Names lists the scenarios.
func Names() []string {
	var out []string
	for _, s := range scenarios {
		out = append(out, s.name)
	}
	return out
}

// env is the running cluster of a scenario.
type env struct {
	bin    string
	dir    datadir.Dir
	begin  time.Time // just before the process was started
	up     time.Duration
	client *client.Client
	server *exec.Cmd // the process of startServer
}

// Config selects scenarios and says where their figures go.
type Config struct {
	Program   string   // the path of the program that is measured
	Scenarios []string // by name; none: all
	JSON      bool
	History   string // the file to which the figures are appended; "": none
}

// Run runs the scenarios and prints one line per figure to out. It returns an error when a scenario fails or a figure
// exceeds its budget.
func Run(ctx context.Context, cfg Config, out io.Writer) error {
	history, err := openHistory(cfg.History) // before minutes of measuring
	if err != nil {
		return err
	}
	var results []Result
	var errs []error
	for _, s := range scenarios {
		if len(cfg.Scenarios) > 0 && !slices.Contains(cfg.Scenarios, s.name) {
			continue
		}
		if s.root && os.Getuid() != 0 {
			_, _ = fmt.Fprintf(out, "%s: skipped, it needs root\n", s.name)
			continue
		}
		rs, err := s.measure(ctx, cfg.Program)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
		results = append(results, rs...) // also the figures measured before an error
	}
	if err := errors.Join(history.add(results), history.close(), report(out, results, cfg.JSON)); err != nil {
		return err
	}
	for _, r := range results {
		if !r.ok() {
			errs = append(errs, fmt.Errorf("%s: %s is %.4g %s, promised %.4g", r.Scenario, r.Figure, r.Value, r.Unit,
				r.Limit))
		}
	}
	return errors.Join(errs...)
}

func report(out io.Writer, results []Result, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(out)
		for _, r := range results {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	var lines strings.Builder // a screen wraps whole lines, and a table is written in pieces
	table := tabwriter.NewWriter(&lines, 0, 8, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "scenario\tfigure\tvalue\tunit\tpromise\t")
	for _, r := range results {
		promise := "-"
		if r.Limit > 0 {
			promise = fmt.Sprintf("%.4g", r.Limit)
			if r.Higher {
				promise = ">= " + promise
			} else {
				promise = "<= " + promise
			}
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%.4g\t%s\t%s\t\n", r.Scenario, r.Figure, r.Value, r.Unit, promise)
	}
	_ = table.Flush() // a strings.Builder does not fail
	_, err := io.WriteString(out, lines.String())
	return err
}

// measure starts a cluster, runs the scenario and deletes the cluster.
func (s scenario) measure(ctx context.Context, bin string) (_ []Result, err error) {
	tmp, err := os.MkdirTemp("", "keelson-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	e := &env{bin: bin, dir: datadir.Dir(filepath.Join(tmp, "data"))}
	if s.alone {
		if err := e.startServer(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, e.stopServer()) }()
		return s.run(ctx, e)
	}
	if err := e.start(ctx, s.args...); err != nil {
		return nil, err
	}
	defer func() {
		// Delete the cluster even when the measurement was interrupted.
		err = errors.Join(err, e.command(context.WithoutCancel(ctx), "down", "--purge"))
	}()
	return s.run(ctx, e)
}

func (e *env) start(ctx context.Context, args ...string) error {
	e.begin = time.Now()
	if err := e.command(ctx, append([]string{"up", "--detach", "--port", "0"}, args...)...); err != nil {
		return err
	}
	e.up = time.Since(e.begin)
	cfg, err := clientcmd.BuildConfigFromFlags("", e.dir.Kubeconfig())
	if err != nil {
		return err
	}
	e.client, err = client.Remote(cfg, "keelson-bench")
	return err
}

// command runs the program on the cluster of the scenario.
func (e *env) command(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, e.bin, append(args, "--data-dir", string(e.dir))...)
	c.WaitDelay = 10 * time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("keelson %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

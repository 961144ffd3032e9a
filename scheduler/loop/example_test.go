// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/scheduler/config"
	"keelson/scheduler/framework"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// begin of the plugin in docs/scheduler.md

// Racks keeps pods off racks that are being worked on, and prefers those with the fewest pods on a node.
type Racks struct {
	Closed []string `json:"closed"`
}

// NewRacks is its factory: args are what the file says.
func NewRacks(args any, _ *framework.Handle) (*framework.Plugin, error) {
	p := &Racks{}
	if text, ok := args.(json.RawMessage); ok {
		if err := json.Unmarshal(text, p); err != nil {
			return nil, fmt.Errorf("arguments of Racks: %w", err)
		}
	}
	return &framework.Plugin{
		Name:      "Racks", // as in the file
		PreFilter: p.PreFilter,
		PreScore:  p.PreScore,
		Events:    p.events(),
	}, nil
}

// PreFilter returns the zero value where there is nothing to say: that costs nothing.
func (p *Racks) PreFilter(
	*framework.CycleState, *state.PodInfo, *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	if len(p.Closed) == 0 {
		return framework.NodeFilter{}, nil
	}
	return framework.NodeFilter{Filter: p.filter, NodeLocal: true}, nil
}

var closed = framework.NewStatus("Racks", framework.Unresolvable, "node(s) in a rack that is closed")

// filter is asked about each node, from several goroutines. It looks at that node only, so its results are kept.
func (p *Racks) filter(n *state.NodeInfo) *framework.Status {
	if slices.Contains(p.Closed, n.Node.Labels["rack"]) {
		return closed
	}
	return nil
}

// PreScore is asked when several nodes fit.
func (p *Racks) PreScore(
	*framework.CycleState, *state.PodInfo, *state.Snapshot, []*state.NodeInfo,
) framework.NodeScorer {
	return framework.NodeScorer{
		Score: func(n *state.NodeInfo) int64 { return int64(len(n.Pods)) },
		// Normalize is called once with the scores of all nodes that fit. It makes them 0 to 100, the fewest best.
		Normalize: func(scores []int64) { framework.NormalizeByMax(scores, true) },
	}
}

// events says what may let in a pod that Racks refused.
func (p *Racks) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{
		Kinds: framework.NodeAdd | framework.NodeLabels,
		QueueingHintFn: func(_ *state.PodInfo, e *framework.Event) bool {
			return !slices.Contains(p.Closed, e.NewNode.Labels["rack"])
		},
	}}
}

// run schedules for the cluster of a kubeconfig, by a KubeSchedulerConfiguration that may name Racks, until Ctrl-C.
func run(kubeconfig, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	how, err := config.Read(file, text, []string{"Racks"})
	if err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	c, err := client.Remote(rest, "my-scheduler")
	if err != nil {
		return err
	}
	s, err := loop.New(loop.Config{
		Client:        c,
		Configuration: how,
		Plugins:       framework.Registry{"Racks": NewRacks},
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return s.Run(ctx, func() { fmt.Println("scheduling") })
}

// end of the plugin in docs/scheduler.md

const racksFile = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: racks                  # for pods with spec.schedulerName: racks
  plugins:
    multiPoint:
      enabled: [{name: Racks, weight: 5}]
  pluginConfig:
  - name: Racks
    args: {closed: [r2]}
`

// A plugin of one's own, named in the configuration, decides where a pod goes.
func Example() {
	server := clienttest.New(schedtest.Node("node-1", schedtest.Labels("rack", "r1")),
		schedtest.Node("node-2", schedtest.Labels("rack", "r2")),
		schedtest.Pod("a", func(p *corev1.Pod) { p.Spec.SchedulerName = "racks" }))
	bound := make(chan string, 1)
	server.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if c, ok := a.(k8stesting.CreateAction); ok {
			if b, ok := c.GetObject().(*corev1.Binding); ok {
				bound <- b.Name + " on " + b.Target.Name
				return true, b, nil
			}
		}
		return false, nil, nil
	})
	how, err := config.Read("racks.yaml", []byte(racksFile), []string{"Racks"})
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := loop.New(loop.Config{
		Client:        &client.Client{Interface: client.Plain(server)},
		Configuration: how,
		Plugins:       framework.Registry{"Racks": NewRacks},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() {}) }() // ends with ctx
	select {
	case what := <-bound:
		fmt.Println(what)
	case err := <-done:
		fmt.Println("ended:", err)
		return
	}
	stop()
	<-done
	// Output: a on node-1
}

// TestExampleIsDocumented: the documentation shows this plugin and this file as they are compiled here.
func TestExampleIsDocumented(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, plugin, _ := strings.Cut(string(source), "// begin of the plugin in docs/scheduler.md\n\n")
	plugin, _, ok := strings.Cut(plugin, "\n// end of the plugin in docs/scheduler.md")
	docs, err := os.ReadFile("../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	if !ok || !strings.Contains(string(docs), "```go\n"+plugin+"```") {
		t.Error("docs/scheduler.md does not show the plugin of example_test.go")
	}
	if !strings.Contains(string(docs), "```yaml\n"+racksFile+"```") {
		t.Error("docs/scheduler.md does not show the file of example_test.go")
	}
	if err := run("none", "none"); err == nil {
		t.Error("run reads a file that is not there")
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package scheduling is the scheduler's life in a process: its options, the file of its configuration, which is read
// again when it changes, and its metrics. cluster runs one; `keelson scheduler --check` reads a file only. How pods are
// scheduled is not here.
package scheduling

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"keelson/apiserver/configreload"
	"keelson/apiserver/crd"
	"keelson/client"
	"keelson/lib/option"
	schedulerconfig "keelson/scheduler/config"
	"keelson/scheduler/loop"
	"keelson/scheduler/policy"
	"keelson/scheduler/policy/objects"
)

// Lease is the name of the lease of schedulers.
const Lease = "kube-scheduler"

// Metrics are those of a scheduler and of its configuration file. Schedulers of one cluster share a set.
type Metrics struct {
	loop    *loop.Metrics
	reloads *prometheus.CounterVec
}

// NewMetrics returns a set.
func NewMetrics() *Metrics {
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scheduler_config_automatic_reloads_total",
		Help: "How often the scheduler's configuration file was read again, by how that went.",
	}, []string{"status"})
	reloads.WithLabelValues("success")
	reloads.WithLabelValues("failure")
	return &Metrics{loop: loop.NewMetrics(), reloads: reloads}
}

// Collectors returns them.
func (m *Metrics) Collectors() []prometheus.Collector { return append(m.loop.Collectors(), m.reloads) }

// Options configure the scheduler.
type Options struct {
	// ConfigFile holds a KubeSchedulerConfiguration; empty: the default.
	ConfigFile string
	// Check makes the process validate a file with a KubeSchedulerConfiguration or SchedulingPolicies, and exit.
	Check string
	// PrintCRD makes the process print the CRD of scheduling policies, and exit.
	PrintCRD bool
}

// PolicyManifest is the CustomResourceDefinition of SchedulingPolicy.
func PolicyManifest() []byte { return policy.Manifest }

// PolicyChecks make the server reject a SchedulingPolicy whose expressions do not compile.
func PolicyChecks() map[schema.GroupVersionResource]crd.Check {
	return map[schema.GroupVersionResource]crd.Check{policy.Resource: objects.Check}
}

// Check validates a file with a KubeSchedulerConfiguration or with SchedulingPolicies. what summarizes its
// content.
func Check(path string) (what string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("check: %w", err)
	}
	var errs []error
	n := 0
	for in := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b))); ; {
		text, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		obj := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(text, &obj.Object)
		}
		if err != nil && n == 0 {
			break // it is read as a configuration below, which names the line
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		if obj.GetKind() != "SchedulingPolicy" {
			continue
		}
		n++
		for _, wrong := range objects.Check(obj, nil) {
			errs = append(errs, fmt.Errorf("%s: SchedulingPolicy %s: %w", path, obj.GetName(), wrong))
		}
	}
	if n > 0 {
		return fmt.Sprintf("%d SchedulingPolicies", n), errors.Join(errs...)
	}
	c, err := schedulerconfig.Read(path, b, nil)
	if err != nil {
		return "", err
	}
	return strings.Join(append([]string{"a KubeSchedulerConfiguration"}, c.Warnings...), "\nwarning: "), nil
}

// Rows are the options of a scheduler in any process.
func (o *Options) Rows() []option.Row {
	return []option.Row{
		option.New(&o.ConfigFile, "scheduler-config", "",
			"`FILE` with a KubeSchedulerConfiguration: profiles, plugins and their arguments (read again when it "+
				"changes)"),
	}
}

// Read returns the file's content and the parsed configuration; without a file the default.
func (o Options) Read() ([]byte, *schedulerconfig.Configuration, error) {
	if o.ConfigFile == "" {
		return nil, schedulerconfig.Default(), nil
	}
	b, err := os.ReadFile(o.ConfigFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	c, err := schedulerconfig.Read(o.ConfigFile, b, nil)
	return b, c, err
}

// Scheduler runs schedulers one after another: it starts a new one each time the configuration file changes. A
// scheduler has no state that the next one needs.
type Scheduler struct {
	cfg     loop.Config
	path    string // empty: there is no file
	files   *configreload.Files
	metrics *Metrics
	log     *slog.Logger
	// events are about the lease of the schedulers: there is no other object of theirs.
	events *client.Events
	lease  *coordinationv1.Lease

	mu     sync.Mutex
	next   *loop.Scheduler
	change context.CancelFunc // ends the running scheduler
}

// New loads and checks the configuration. rejected gets a later one that is wrong; it may be nil.
func New(
	cfg loop.Config, options Options, metrics *Metrics, rejected *configreload.Rejected,
) (*Scheduler, error) {
	b, configuration, err := options.Read()
	if err != nil {
		return nil, err
	}
	cfg.Metrics = metrics.loop
	e := cfg.Election.Default()
	l := &Scheduler{
		cfg:     cfg,
		path:    options.ConfigFile,
		files:   configreload.New(cfg.Log, rejected),
		log:     cfg.Log,
		metrics: metrics,
		events:  cfg.Client.Events(configuration.Profiles[0].SchedulerName, "", cfg.Log),
		lease: &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: cmp.Or(e.Name, Lease)},
		},
	}
	if options.ConfigFile != "" {
		l.files.Watch("scheduler", options.ConfigFile, b, l.reload)
	}
	return l, l.use(configuration)
}

// use creates the scheduler with the configuration that runs next.
func (l *Scheduler) use(configuration *schedulerconfig.Configuration) error {
	cfg := l.cfg
	cfg.Configuration = configuration
	s, err := loop.New(cfg)
	if err != nil {
		return err
	}
	for _, w := range configuration.Warnings {
		l.log.Warn("scheduler configuration", "file", l.path, "warning", w)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = s
	l.cfg.Configuration = configuration
	if l.change != nil {
		l.change()
	}
	return nil
}

// reload uses the new content of the file. A content that is wrong is rejected with an event and in a metric: a process
// of its own has no other place where people look.
func (l *Scheduler) reload(ctx context.Context, content []byte) error {
	c, err := schedulerconfig.Read(l.path, content, nil)
	if err == nil {
		err = l.use(c)
	}
	if err != nil {
		l.metrics.reloads.WithLabelValues("failure").Inc()
		l.events.Eventf(l.subject(ctx), corev1.EventTypeWarning, "ConfigurationRejected",
			"The previous configuration stays in use: %s", cut(err.Error(), maxNote))
		return err
	}
	l.metrics.reloads.WithLabelValues("success").Inc()
	l.events.Eventf(l.subject(ctx), corev1.EventTypeNormal, "ConfigurationReloaded", "%s is in use", l.path)
	return nil
}

// leaseTimeout limits the read of the lease.
const leaseTimeout = 5 * time.Second

// subject returns the lease with its UID, by which kubectl describe finds events; without an election there may be
// none.
func (l *Scheduler) subject(ctx context.Context) *coordinationv1.Lease {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	found, err := l.cfg.Client.CoordinationV1().Leases(l.lease.Namespace).Get(ctx, l.lease.Name, metav1.GetOptions{})
	if err != nil {
		return l.lease
	}
	return found
}

// maxNote is the maximum length of a configuration error in an event.
const maxNote = 900

func cut(text string, to int) string {
	if len(text) <= to {
		return text
	}
	return strings.ToValidUTF8(text[:to], "") + " ..."
}

// Reporter is the component that events about leader election name, as kube-scheduler's: the first profile.
func (l *Scheduler) Reporter() string { return l.cfg.Configuration.Profiles[0].SchedulerName }

// Run schedules until ctx ends.
func (l *Scheduler) Run(ctx context.Context, ready func()) error {
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	if watch := l.files.Part(); watch != nil {
		watching.Go(func() { _ = l.events.Run(ctx, func() {}) }) // it has no errors
		watching.Go(func() {
			if err := watch(ctx, func() {}); err != nil && ctx.Err() == nil {
				l.log.Error("watch the scheduler configuration file", "file", l.path, "error", err)
			}
		})
	}
	ready = sync.OnceFunc(ready)
	for {
		s, term, err := l.begin(ctx)
		if err == nil {
			err = s.Run(term, ready)
		}
		if ctx.Err() != nil || term.Err() == nil {
			return err
		}
	}
}

// begin returns the scheduler to run, and the context that ends it.
func (l *Scheduler) begin(ctx context.Context) (*loop.Scheduler, context.Context, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	term, change := context.WithCancel(ctx)
	l.change = change
	s := l.next
	if l.next = nil; s != nil {
		return s, term, nil
	}
	s, err := loop.New(l.cfg) // another term with the same configuration
	return s, term, err
}

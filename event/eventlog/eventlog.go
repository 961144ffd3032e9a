// SPDX-License-Identifier: Apache-2.0

// Package eventlog logs the actions of the cluster's components in Kubernetes' terms: bound, pulled, created, started,
// probe failed. Its Writer is a listener of marks. cluster makes one for each process. It keeps no state, and does not
// limit the number of lines: the log's handler does.
package eventlog

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"keelson/event"
)

// Names of components, the values of the log attribute Key.
const (
	Key               = "component"
	APIServer         = "apiserver"
	ControllerManager = "controller-manager"
	Scheduler         = "scheduler"
	Kubelet           = "kubelet"
	Runtime           = "runtime"
	Network           = "network"
	NetworkPolicy     = "networkpolicy"
	Proxy             = "proxy"
	DNS               = "dns"
	FakeNodes         = "fake-nodes"
	Store             = "store"
	Timeline          = "timeline"
	Cluster           = "cluster"
	Certificates      = "certificates"
	Libraries         = "libraries"
)

// Components returns all names, the most important first.
func Components() []string {
	return []string{
		APIServer, ControllerManager, Scheduler, Kubelet, Runtime, Network, Proxy, NetworkPolicy, DNS, FakeNodes,
		Store, Timeline, Cluster,
		Certificates, Libraries,
	}
}

// Writer writes actions to a log.
type Writer struct{ log *slog.Logger }

// New returns a Writer that writes to a log.
func New(to *slog.Logger) *Writer { return &Writer{to} }

// Listen is a event.Listener. It does not log requests and other steps that users do not wait for.
func (t *Writer) Listen(mk event.Event) {
	if mk.Step == event.StepRequest || mk.Step == event.StepQueued { // most marks are of these steps
		return
	}
	say, attrs := describe(mk)
	if say == "" || !t.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	component, node, _ := strings.Cut(mk.Component, " ")
	switch {
	case component == "controllers":
		component = ControllerManager
	case mk.Step == event.StepPolicy:
		component = NetworkPolicy
	}
	line := make([]slog.Attr, 0, len(attrs)+5)
	line = append(line, slog.String(Key, component))
	if mk.Subject.Resource == "pods" {
		line = append(line, slog.String("pod", name(mk.Subject)))
	} else {
		line = append(line, slog.String("object", mk.Subject.Resource+"/"+name(mk.Subject)))
	}
	if node != "" {
		line = append(line, slog.String("node", node))
	}
	line = append(line, attrs...)
	if mk.Took > 0 {
		line = append(line, slog.Duration("took", mk.Took.Round(10*time.Microsecond)))
	}
	level := slog.LevelInfo
	if mk.Err != "" {
		level = slog.LevelWarn
		line = append(line, slog.String("err", mk.Err))
	}
	t.log.LogAttrs(context.Background(), level, say, line...)
}

func name(s event.Subject) string {
	if s.Namespace == "" {
		return s.Name
	}
	return s.Namespace + "/" + s.Name
}

// attempt is what the log has to know of a decisions.Attempt, whose package the room event cannot import.
type attempt interface {
	// Unplaced returns why the attempt found no node; false: it found one.
	Unplaced() (why string, unplaced bool)
}

// describe returns the message and attributes of a mark; "": it is not logged.
func describe(mk event.Event) (string, []slog.Attr) {
	failed := mk.Err != ""
	switch d := mk.Detail.(type) {
	case *event.Reconcile:
		return reconciled(d, failed)
	case attempt:
		if why, unplaced := d.Unplaced(); unplaced && !failed {
			return "could not schedule pod", []slog.Attr{slog.String("why", why)}
		}
	case *event.Bind:
		if !failed { // the scheduler logs the reason of a retry
			return "bound pod", []slog.Attr{slog.String("node", d.Node)}
		}
	case *event.Network:
		if d.HostNetwork {
			return "", nil
		}
		return either(failed, "could not set up the pod's network", "set up the pod's network"), []slog.Attr{
			slog.Any("ips", d.IPs),
		}
	case *event.Sandbox:
		return either(failed, "could not create pod sandbox", "created pod sandbox"), []slog.Attr{
			slog.String("sandbox", short(d.ID)),
		}
	case *event.Reachable:
		return "service leads to pod", []slog.Attr{
			slog.String("service", d.Service), slog.String("front", d.Front), slog.String("endpoint", d.Endpoint),
		}
	case *event.Resolvable:
		return "name resolves", []slog.Attr{slog.String("name", d.Name)}
	case *event.Policy:
		return either(failed, "could not isolate pod", "isolated pod"), []slog.Attr{
			slog.Any("ingress", d.Ingress), slog.Any("egress", d.Egress),
		}
	case *event.Eviction:
		return eviction(d)
	case *event.Volumes:
		if failed {
			return "could not mount volumes", nil
		}
	default:
		return inPod(mk, failed)
	}
	return "", nil
}

// inPod describes a mark of a pod's containers.
func inPod(mk event.Event, failed bool) (string, []slog.Attr) {
	switch d := mk.Detail.(type) {
	case *event.Image:
		switch {
		case failed:
			return "could not pull image", []slog.Attr{
				slog.String("image", d.Image), slog.String("container", d.Container),
			}
		case d.Done && !d.Present:
			return "pulled image", []slog.Attr{
				slog.String("image", d.Image), slog.String("container", d.Container), slog.Int64("bytes", d.Total),
			}
		}
	case *event.Container:
		return container(mk.Step, d, failed)
	case *event.Probe:
		attrs := []slog.Attr{slog.String("container", d.Container), slog.String("probe", d.Kind), slog.String("action",
			d.Action), slog.String("output", d.Output)}
		return either(!d.Success, "probe failed", "probe succeeded"), attrs
	case *event.Status:
		switch mk.Step {
		case event.StepReady:
			return "pod is ready", nil
		case event.StepTerminated:
			return "pod is terminated", []slog.Attr{slog.String("phase", d.To)}
		}
	}
	return "", nil
}

func container(step event.Step, ctr *event.Container, failed bool) (string, []slog.Attr) {
	attrs := []slog.Attr{slog.String("container", ctr.Name)}
	if ctr.ID != "" {
		attrs = append(attrs, slog.String("id", short(ctr.ID)))
	}
	if ctr.Restart > 0 {
		attrs = append(attrs, slog.Int("restart", ctr.Restart))
	}
	switch step {
	case event.StepContainerCreated:
		return either(failed, "could not create container", "created container"), attrs
	case event.StepContainerStarted:
		return either(failed, "could not start container", "started container"), attrs
	default:
		return "container exited", append(attrs, slog.Int("code", ctr.ExitCode), slog.String("reason", ctr.Reason))
	}
}

// reconciled describes what a controller created and deleted; a pass that only wrote a status is not logged.
func reconciled(reconcile *event.Reconcile, failed bool) (string, []slog.Attr) {
	attrs := []slog.Attr{slog.String("controller", reconcile.Controller)}
	if reconcile.Wants != 0 || reconcile.Has != 0 {
		attrs = append(attrs, slog.Int("wants", reconcile.Wants), slog.Int("has", reconcile.Has))
	}
	if len(reconcile.Creates) > 0 {
		attrs = append(attrs, slog.Any("created", reconcile.Creates))
	}
	if len(reconcile.Deletes) > 0 {
		attrs = append(attrs, slog.Any("deleted", reconcile.Deletes))
	}
	switch {
	case failed:
		return "could not reconcile", attrs
	case len(reconcile.Creates) > 0 && len(reconcile.Deletes) > 0:
		return "created and deleted", attrs
	case len(reconcile.Creates) > 0:
		return "created", attrs
	case len(reconcile.Deletes) > 0:
		return "deleted", attrs
	}
	return "", nil
}

func eviction(d *event.Eviction) (string, []slog.Attr) {
	attrs := []slog.Attr{slog.String("node", d.Node), slog.String("taint", d.Taint)}
	if d.Cancelled {
		return "pod stays: the node's taint is gone or tolerated", attrs
	}
	return "pod will be evicted", append(attrs, slog.Time("at", d.Deadline))
}

func either(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

// short returns the prefix of an id that identifies it for people.
func short(id string) string { return id[:min(len(id), 12)] }

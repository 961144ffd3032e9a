// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"keelson/event"
)

// tried stands for an attempt of the scheduler.
type tried struct{ why string }

func (t tried) Unplaced() (string, bool) { return t.why, t.why != "" }

// TestLines: what each component does is one line in Kubernetes' words, with the component and the object it is
// about.
func TestLines(t *testing.T) {
	pod := event.Subject{
		Resource:  "pods",
		Namespace: "shop",
		Name:      "web-1",
		UID:       "u",
	}
	set := event.Subject{Resource: "replicasets", Namespace: "shop", Name: "web"}
	for name, c := range map[string]struct {
		m    event.Event
		want string
	}{
		"request": {event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			Subject:   pod,
			Detail:    &event.Request{},
		}, ""},
		"queued": {event.Event{
			Step:      event.StepQueued,
			Component: "scheduler",
			Subject:   pod,
			Detail:    &event.Queued{},
		}, ""},
		"chosen": {event.Event{
			Step:      event.StepDecision,
			Component: "scheduler",
			Subject:   pod,
			Detail:    tried{},
		}, ""},
		"could not": {event.Event{
			Step:      event.StepDecision,
			Component: "scheduler",
			Subject:   pod,
			Detail:    tried{why: "0/1 nodes"},
		}, `level=INFO msg="could not schedule pod" component=scheduler pod=shop/web-1 why="0/1 nodes"`},
		"bound": {event.Event{
			Step:      event.StepBind,
			Component: "scheduler",
			Subject:   pod,
			Took:      12345678,
			Detail:    &event.Bind{Node: "n"},
		}, `level=INFO msg="bound pod" component=scheduler pod=shop/web-1 node=n took=12.35ms`},
		"created": {event.Event{
			Step:      event.StepReconcile,
			Component: "controllers",
			Subject:   set,
			Detail: &event.Reconcile{
				Controller: "replicaset",
				Wants:      2,
				Has:        1,
				Creates:    []string{"web-2"},
			},
		}, `level=INFO msg=created component=controller-manager object=replicasets/shop/web controller=replicaset wants=2 has=1 created=[web-2]`},
		"deleted": {event.Event{
			Step:      event.StepReconcile,
			Component: "controllers",
			Subject:   set,
			Detail:    &event.Reconcile{Controller: "replicaset", Has: 1, Deletes: []string{"web-2"}},
		}, `level=INFO msg=deleted component=controller-manager object=replicasets/shop/web controller=replicaset wants=0 has=1 deleted=[web-2]`},
		"status only": {event.Event{
			Step:      event.StepReconcile,
			Component: "controllers",
			Subject:   set,
			Detail:    &event.Reconcile{},
		}, ""},
		"failed": {event.Event{
			Step:      event.StepReconcile,
			Component: "controllers",
			Subject:   set,
			Err:       "quota",
			Detail:    &event.Reconcile{Controller: "replicaset"},
		}, `level=WARN msg="could not reconcile" component=controller-manager object=replicasets/shop/web controller=replicaset err=quota`},
		"present": {event.Event{
			Step:      event.StepImage,
			Component: "kubelet n",
			Subject:   pod,
			Detail:    &event.Image{Image: "i", Present: true, Done: true},
		}, ""},
		"pulled": {event.Event{
			Step:      event.StepImage,
			Component: "kubelet n",
			Subject:   pod,
			Took:      time.Second,
			Detail: &event.Image{
				Container: "c",
				Image:     "i",
				Done:      true,
				Total:     7,
			},
		}, `level=INFO msg="pulled image" component=kubelet pod=shop/web-1 node=n image=i container=c bytes=7 took=1s`},
		"no image": {event.Event{
			Step:      event.StepImage,
			Component: "kubelet n",
			Subject:   pod,
			Err:       "404",
			Detail:    &event.Image{Container: "c", Image: "i"},
		}, `level=WARN msg="could not pull image" component=kubelet pod=shop/web-1 node=n image=i container=c err=404`},
		"made": {event.Event{
			Step:      event.StepContainerCreated,
			Component: "kubelet n",
			Subject:   pod,
			Detail:    &event.Container{Name: "c", ID: "0123456789abcdef"},
		}, `level=INFO msg="created container" component=kubelet pod=shop/web-1 node=n container=c id=0123456789ab`},
		"started": {event.Event{
			Step:      event.StepContainerStarted,
			Component: "kubelet n",
			Subject:   pod,
			Detail:    &event.Container{Name: "c", Restart: 2},
		}, `level=INFO msg="started container" component=kubelet pod=shop/web-1 node=n container=c restart=2`},
		"exited": {event.Event{
			Step:      event.StepContainerExited,
			Component: "kubelet n",
			Subject:   pod,
			Detail:    &event.Container{Name: "c", ExitCode: 137, Reason: "OOMKilled"},
		}, `level=INFO msg="container exited" component=kubelet pod=shop/web-1 node=n container=c code=137 reason=OOMKilled`},
		"probe": {event.Event{
			Step:      event.StepProbe,
			Component: "kubelet n",
			Subject:   pod,
			Detail: &event.Probe{
				Container: "c",
				Kind:      "liveness",
				Action:    "http :80/",
				Output:    "500",
			},
		}, `level=INFO msg="probe failed" component=kubelet pod=shop/web-1 node=n container=c probe=liveness action="http :80/" output=500`},
		"ready": {event.Event{
			Step:      event.StepReady,
			Component: "kubelet n",
			Subject:   pod,
			Detail:    &event.Status{To: "Running", Ready: true},
		}, `level=INFO msg="pod is ready" component=kubelet pod=shop/web-1 node=n`},
		"terminated": {event.Event{
			Step:      event.StepTerminated,
			Component: "kubelet n",
			Subject:   pod,
			Detail:    &event.Status{To: "Failed"},
		}, `level=INFO msg="pod is terminated" component=kubelet pod=shop/web-1 node=n phase=Failed`},
		"reachable": {event.Event{
			Step:      event.StepReachable,
			Component: "proxy n",
			Subject:   pod,
			Detail:    &event.Reachable{Service: "s", Front: "10.96.0.1:80", Endpoint: "10.42.0.2:80"},
		}, `level=INFO msg="service leads to pod" component=proxy pod=shop/web-1 node=n service=s front=10.96.0.1:80 endpoint=10.42.0.2:80`},
		"isolated": {event.Event{
			Step:      event.StepPolicy,
			Component: "network",
			Subject:   pod,
			Detail:    &event.Policy{Ingress: []string{"shop/deny"}},
		}, `level=INFO msg="isolated pod" component=networkpolicy pod=shop/web-1 ingress=[shop/deny] egress=[]`},
		"stays": {event.Event{
			Step:      event.StepEviction,
			Component: "controllers",
			Subject:   pod,
			Detail:    &event.Eviction{Node: "n", Cancelled: true},
		}, `level=INFO msg="pod stays: the node's taint is gone or tolerated" component=controller-manager pod=shop/web-1 node=n taint=""`},
	} {
		var buf bytes.Buffer
		h := slog.NewTextHandler(&buf, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		New(slog.New(h)).Listen(c.m)
		if c.want != "" {
			c.want += "\n"
		}
		if buf.String() != c.want {
			t.Errorf("%s:\n got %swant %s", name, &buf, c.want)
		}
	}
}

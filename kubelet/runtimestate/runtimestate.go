// SPDX-License-Identifier: Apache-2.0

// Package runtimestate reads the sandboxes and containers of a pod through CRI and sorts them.
// The pod workers, the status builder and the server use it; it changes nothing and has no state.
package runtimestate

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels and annotations that the kubelet puts on sandboxes and containers; other node tools know them by these names.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash          = "io.kubernetes.container.hash"
	AnnotationRestartCount  = "io.kubernetes.container.restartCount"
	AnnotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationResources     = "keelson.io/container.resources"
	AnnotationBackOff       = "keelson.io/container.backoff"
	AnnotationLife          = "keelson.io/pod.life"
	AnnotationGracePeriod   = "io.kubernetes.pod.terminationGracePeriod"
)

// Pod is one pod in the runtime. Sandboxes and containers are newest first. It is immutable once read.
type Pod struct {
	UID        string
	Namespace  string
	Name       string
	Sandboxes  []Sandbox
	Containers []Container
}

// Sandbox is one pod sandbox. IPs are empty for a pod on the host network.
type Sandbox struct {
	ID      string
	Attempt uint32
	Ready   bool
	Created time.Time
	IPs     []string
}

// Container is one run of a container. Restart is 0 for the first run. Life counts how often all containers of the pod
// had been restarted together before it.
type Container struct {
	ID          string
	Name        string
	SandboxID   string
	Restart     int
	Life        int
	State       runtimeapi.ContainerState
	Created     time.Time
	Started     time.Time
	Finished    time.Time
	ExitCode    int32
	Reason      string
	Message     string
	Image       string
	ImageRef    string
	LogPath     string
	Annotations map[string]string
	Mounts      []*runtimeapi.Mount
	User        *runtimeapi.ContainerUser
	Resources   *runtimeapi.LinuxContainerResources
}

// Running reports whether the container runs.
func (c *Container) Running() bool {
	return c != nil && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Exited reports whether the container ran and ended.
func (c *Container) Exited() bool {
	return c != nil && c.State == runtimeapi.ContainerState_CONTAINER_EXITED
}

// Current is the newest sandbox if it is ready, else nil.
func (p *Pod) Current() *Sandbox {
	if p == nil || len(p.Sandboxes) == 0 || !p.Sandboxes[0].Ready {
		return nil
	}
	return &p.Sandboxes[0]
}

// Latest is the newest run of a container in any sandbox, nil when it never ran.
func (p *Pod) Latest(name string) *Container { return p.nth(name, 0) }

// Previous is the run before Latest, nil when there is none.
func (p *Pod) Previous(name string) *Container { return p.nth(name, 1) }

func (p *Pod) nth(name string, n int) *Container {
	if p == nil {
		return nil
	}
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			if n == 0 {
				return &p.Containers[i]
			}
			n--
		}
	}
	return nil
}

// LatestIn is the newest run of a container in one sandbox, nil when there is none.
func (p *Pod) LatestIn(sandbox, name string) *Container {
	if p == nil {
		return nil
	}
	for i := range p.Containers {
		if c := &p.Containers[i]; c.Name == name && c.SandboxID == sandbox {
			return c
		}
	}
	return nil
}

// Find is the container with this id, nil when there is none.
func (p *Pod) Find(id string) *Container {
	if p == nil {
		return nil
	}
	for i := range p.Containers {
		if p.Containers[i].ID == id {
			return &p.Containers[i]
		}
	}
	return nil
}

// Running yields the containers that run.
func (p *Pod) Running() iter.Seq[*Container] {
	return func(yield func(*Container) bool) {
		if p == nil {
			return
		}
		for i := range p.Containers {
			if c := &p.Containers[i]; c.Running() && !yield(c) {
				return
			}
		}
	}
}

// Read asks the runtime about one pod. A pod the runtime does not know is a Pod without sandboxes and containers.
func Read(ctx context.Context, rt runtimeapi.RuntimeServiceClient, uid string) (*Pod, error) {
	sel := map[string]string{LabelPodUID: uid}
	boxes, err := rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: sel},
	})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes of pod %s: %w", uid, err)
	}
	list, err := rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: sel},
	})
	if err != nil {
		return nil, fmt.Errorf("list containers of pod %s: %w", uid, err)
	}
	pod := &Pod{UID: uid}
	for _, b := range boxes.GetItems() {
		pod.Namespace = b.GetMetadata().GetNamespace()
		pod.Name = b.GetMetadata().GetName()
		s, err := readSandbox(ctx, rt, b)
		if err != nil {
			return nil, err
		}
		if s != nil {
			pod.Sandboxes = append(pod.Sandboxes, *s)
		}
	}
	items := list.GetContainers()
	found := make([]*Container, len(items))
	g, gctx := errgroup.WithContext(ctx)
	for i, c := range items {
		g.Go(func() error {
			var err error
			found[i], err = readContainer(gctx, rt, c)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, c := range found {
		if c != nil {
			pod.Containers = append(pod.Containers, *c)
		}
	}
	pod.sort()
	return pod, nil
}

func (p *Pod) sort() {
	slices.SortFunc(p.Sandboxes, func(a, b Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created))
	})
	slices.SortFunc(p.Containers, func(a, b Container) int {
		return cmp.Or(cmp.Compare(b.Restart, a.Restart), b.Created.Compare(a.Created))
	})
}

func readSandbox(
	ctx context.Context, rt runtimeapi.RuntimeServiceClient, podSandbox *runtimeapi.PodSandbox,
) (*Sandbox, error) {
	sandbox := &Sandbox{
		ID:      podSandbox.GetId(),
		Attempt: podSandbox.GetMetadata().GetAttempt(),
		Created: time.Unix(0, podSandbox.GetCreatedAt()),
		Ready:   podSandbox.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
	}
	r, err := rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: podSandbox.GetId()})
	if grpcstatus.Code(err) == codes.NotFound {
		return nil, nil // removed between the two calls
	}
	if err != nil {
		return nil, fmt.Errorf("status of sandbox %s: %w", podSandbox.GetId(), err)
	}
	sandbox.Ready = r.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	if n := r.GetStatus().GetNetwork(); n.GetIp() != "" {
		sandbox.IPs = append(sandbox.IPs, n.GetIp())
		for _, ip := range n.GetAdditionalIps() {
			sandbox.IPs = append(sandbox.IPs, ip.GetIp())
		}
	}
	return sandbox, nil
}

func readContainer(
	ctx context.Context, rt runtimeapi.RuntimeServiceClient, container *runtimeapi.Container,
) (*Container, error) {
	r, err := rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container.GetId()})
	if grpcstatus.Code(err) == codes.NotFound {
		return nil, nil // removed between the two calls
	}
	if err != nil {
		return nil, fmt.Errorf("status of container %s: %w", container.GetId(), err)
	}
	st := r.GetStatus()
	out := &Container{
		ID:          container.GetId(),
		Name:        st.GetMetadata().GetName(),
		SandboxID:   container.GetPodSandboxId(),
		Restart:     int(st.GetMetadata().GetAttempt()),
		State:       st.GetState(),
		Created:     timeOf(st.GetCreatedAt()),
		Started:     timeOf(st.GetStartedAt()),
		Finished:    timeOf(st.GetFinishedAt()),
		ExitCode:    st.GetExitCode(),
		Reason:      st.GetReason(),
		Message:     st.GetMessage(),
		Image:       st.GetImage().GetImage(),
		ImageRef:    cmp.Or(st.GetImageRef(), st.GetImageId()),
		LogPath:     st.GetLogPath(),
		Annotations: st.GetAnnotations(),
		Mounts:      st.GetMounts(),
		User:        st.GetUser(),
		Resources:   st.GetResources().GetLinux(),
	}
	if n, err := strconv.Atoi(st.GetAnnotations()[AnnotationRestartCount]); err == nil {
		out.Restart = n
	}
	if n, err := strconv.Atoi(st.GetAnnotations()[AnnotationLife]); err == nil {
		out.Life = n
	}
	return out, nil
}

func timeOf(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// ListPods returns all pods in the runtime by UID, with namespace and name.
func ListPods(ctx context.Context, rt runtimeapi.RuntimeServiceClient) (map[string]*Pod, error) {
	boxes, err := rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	out := map[string]*Pod{}
	for _, b := range boxes.GetItems() {
		uid := b.GetLabels()[LabelPodUID]
		if uid == "" {
			continue // not made by a kubelet
		}
		out[uid] = &Pod{UID: uid, Namespace: b.GetMetadata().GetNamespace(), Name: b.GetMetadata().GetName()}
	}
	return out, nil
}

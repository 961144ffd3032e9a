// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/kubelet/image"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/refs"
	"keelson/kubelet/translate"
)

// Reasons why a container waits after its start failed.
const (
	reasonConfig  = "CreateContainerConfigError"
	reasonCreate  = "CreateContainerError"
	reasonRun     = "RunContainerError"
	reasonHook    = "PostStartHookError"
	reasonBackoff = "ImagePullBackOff"
	reasonHeld    = "StartHeldBack"
)

// startError is a start that failed, with what users read.
type startError struct {
	Waiting
	retry time.Time
	err   error
}

func (e *startError) Error() string { return e.Reason + ": " + e.Message }
func (e *startError) Unwrap() error { return e.err }

// retryStart is how long a container whose configuration or creation failed waits; a change of what it refers to ends
// it early.
const retryStart = 10 * time.Second

func failedAs(reason string, err error) error {
	return &startError{
		Waiting: Waiting{Reason: reason, Message: grpcText(err)},
		retry:   time.Now().Add(retryStart),
		err:     err,
	}
}

// start brings one container to run: image, configuration, create, start, post-start hook.
func (w *Worker) start(ctx context.Context, in Input, a Action) func() {
	c, k := podinfo.Find(in.Pod, a.Container)
	err := w.tryStart(ctx, in, a, c, k)
	return func() {
		key := a.Key()
		if err == nil || ctx.Err() != nil {
			w.s.actions.clear(key)
			return
		}
		var se *startError
		if !errors.As(err, &se) {
			se = &startError{
				Waiting: Waiting{Reason: reasonRun, Message: err.Error()},
				retry:   time.Now().Add(retryStart),
			}
		}
		se.Message = cut(se.Message, maxWaiting)
		f := Failed{Waiting: se.Waiting, Retry: se.retry}
		if se.Reason == "ErrImagePull" {
			f.ThenAt = time.Now().Add(showPullError)
			f.Then = Waiting{reasonBackoff, fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", se.Image,
				se.Message), se.Image}
		}
		w.s.actions.failed[key] = f
	}
}

// showPullError is how long a failed pull shows as ErrImagePull before it shows as ImagePullBackOff.
const showPullError = 2 * time.Second

func (w *Worker) tryStart(
	ctx context.Context, in Input, action Action, container *corev1.Container, kind podinfo.Kind,
) error {
	ref := containerRef(in.Pod, container, kind)
	sandbox := in.Observed.Current()
	users, err := w.users(in.Pod)
	if err != nil {
		return failedAs(reasonConfig, err)
	}
	boxCfg, err := w.sandboxConfig(in.Pod, sandbox.Attempt, users)
	if err != nil {
		return failedAs(reasonConfig, err)
	}
	got, err := w.image(ctx, in.Pod, container, ref, boxCfg)
	if err != nil {
		return err
	}
	if action.Replace != "" {
		if _, err := w.env.Runtime.RemoveContainer(ctx,
			&runtimeapi.RemoveContainerRequest{ContainerId: action.Replace}); err != nil {
			return failedAs(reasonCreate, err)
		}
	}
	begin := time.Now()
	ctr := &event.Container{
		Name:    container.Name,
		Init:    kind == podinfo.Init || kind == podinfo.SideCar,
		Restart: action.Restart,
	}
	cfg, err := w.containerConfig(ctx, in, action, container, got, users)
	if err != nil {
		w.mark(event.StepContainerCreated, begin, err, ctr)
		return failedAs(reasonConfig, err)
	}
	// another program may have removed it
	if err := w.env.Cgroups.Grow(w.uid, translate.PodLimits(in.Pod)); err != nil {
		return failedAs(reasonCreate, err)
	}
	resp, err := w.env.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  sandbox.ID,
		Config:        cfg,
		SandboxConfig: boxCfg,
	})
	id := resp.GetContainerId()
	created := *ctr
	created.ID = id
	w.mark(event.StepContainerCreated, begin, err, &created)
	w.env.Metrics.ImageVolumes(imageVolumes(cfg), err)
	if err != nil {
		return failedAs(reasonCreate, err)
	}
	w.env.Events.Event(ref, corev1.EventTypeNormal, "Created", "Container created")
	begin = time.Now()
	_, err = w.env.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	w.mark(event.StepContainerStarted, begin, err, &created)
	if err != nil {
		// Recorded here and not with the waiting reasons: a pod that is never restarted does not wait afterwards.
		w.env.Events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+grpcText(err))
		return failedAs(reasonRun, err)
	}
	w.env.Events.Event(ref, corev1.EventTypeNormal, "Started", "Container started")
	if container.Lifecycle == nil || container.Lifecycle.PostStart == nil {
		return nil
	}
	return w.postStart(ctx, in, container, ref, id)
}

// maxMark is the length of a text in a mark, maxWaiting that of the message of a container that waits. Messages
// quote what the pod says.
const (
	maxMark    = 256
	maxWaiting = 4 << 10
)

// cut shortens a text.
func cut(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "")
	}
	return text
}

func imageVolumes(c *runtimeapi.ContainerConfig) int {
	n := 0
	for _, m := range c.GetMounts() {
		if m.GetImage().GetImage() != "" {
			n++
		}
	}
	return n
}

func (w *Worker) postStart(
	ctx context.Context, in Input, container *corev1.Container, ref *corev1.ObjectReference, id string,
) error {
	w.Notify(RuntimeChanged) // it runs: its startup and liveness probes begin
	begin := time.Now()
	err := w.runHook(ctx, container, w.podIPs(in), id, container.Lifecycle.PostStart, 0)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	w.mark(event.StepProbe, begin, nil, &event.Probe{
		Container: container.Name,
		Kind:      "postStart",
		Action:    "hook of " + container.Name,
		Output:    cut(err.Error(), maxMark),
	})
	w.env.Events.Event(ref, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	w.env.Events.Event(ref, corev1.EventTypeNormal, "Killing", "FailedPostStartHook")
	_, stopErr := w.env.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{
		ContainerId: id,
		Timeout:     podinfo.GracePeriodSeconds(in.Pod),
	})
	return &startError{Waiting: Waiting{Reason: reasonHook, Message: err.Error()}, retry: time.Now(), err: stopErr}
}

// image ensures that the container's image, and those of its image volumes, are on the node.
func (w *Worker) image(
	ctx context.Context, p *corev1.Pod, container *corev1.Container, ref *corev1.ObjectReference,
	box *runtimeapi.PodSandboxConfig,
) (*image.Outcome, error) {
	secrets, missing := w.pullSecrets(ctx, p)
	got, err := w.images(ctx, p, container, ref, box, secrets)
	if failed, ok := errors.AsType[*startError](err); ok && failed.Reason == "ErrImagePull" && len(missing) > 0 {
		w.env.Events.Eventf(podRef(p), corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
			strings.Join(missing, ", "))
	}
	return got, err
}

// images ensures those images, with the pull secrets of the pod that exist.
func (w *Worker) images(
	ctx context.Context, p *corev1.Pod, container *corev1.Container, ref *corev1.ObjectReference,
	box *runtimeapi.PodSandboxConfig, secrets []*corev1.Secret,
) (*image.Outcome, error) {
	for _, vm := range container.VolumeMounts {
		i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == vm.Name && v.Image != nil })
		if i < 0 {
			continue
		}
		v := p.Spec.Volumes[i].Image
		if _, err := w.ensure(ctx, container, ref, image.Request{
			PodUID:  w.uid,
			Image:   v.Reference,
			Policy:  v.PullPolicy,
			Secrets: secrets,
			Sandbox: box,
		}); err != nil {
			return nil, err
		}
	}
	return w.ensure(ctx, container, ref, image.Request{
		PodUID:  w.uid,
		Image:   container.Image,
		Policy:  container.ImagePullPolicy,
		Secrets: secrets,
		Sandbox: box,
	})
}

func (w *Worker) ensure(
	ctx context.Context, container *corev1.Container, ref *corev1.ObjectReference, request image.Request,
) (*image.Outcome, error) {
	begin := time.Now()
	request.Pulling = func() {
		w.env.Events.Eventf(ref, corev1.EventTypeNormal, "Pulling", "Pulling image %q", request.Image)
		w.mark(event.StepImage, begin, nil, &event.Image{Container: container.Name, Image: request.Image})
	}
	got, err := w.env.Images.Ensure(ctx, request)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if ie, ok := errors.AsType[*image.Error](err); ok {
		w.mark(event.StepImage, begin, err, &event.Image{Container: container.Name, Image: request.Image})
		w.imageEvent(ref, ie)
		return nil, &startError{Waiting: Waiting{ie.Reason, ie.Message, request.Image}, retry: ie.Retry, err: err}
	}
	if err != nil {
		return nil, err
	}
	size := int64(got.Image.GetSize()) // no image is that large
	w.mark(event.StepImage, begin, nil, &event.Image{
		Container: container.Name,
		Image:     request.Image,
		Present:   got.Present,
		Bytes:     size,
		Total:     size,
		Done:      true,
	})
	if got.Present {
		w.env.Events.Eventf(ref, corev1.EventTypeNormal, "Pulled", "Container image %q already present on machine "+
			"and can be accessed by the pod%s", request.Image, notPulled(request.Policy))
		return got, nil
	}
	w.env.Events.Eventf(ref, corev1.EventTypeNormal, "Pulled",
		"Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		request.Image, got.Took.Truncate(time.Millisecond), got.Waited.Truncate(time.Millisecond), size)
	return got, nil
}

// notPulled adds to the event of an image that was used as it was why the pull policy Always did not pull it; empty:
// the policy is another.
func notPulled(p corev1.PullPolicy) string {
	if p != corev1.PullAlways {
		return ""
	}
	return "; imagePullPolicy Always does not pull images of keelson.local, which no registry has"
}

func (w *Worker) imageEvent(ref *corev1.ObjectReference, e *image.Error) {
	reason := "Failed"
	switch e.Reason {
	case "ErrImageNeverPull":
		reason = "ErrImageNeverPull"
	case "InvalidImageName", "ImageInspectError":
		reason = "InspectFailed"
	case image.ReasonHeld:
		reason = image.ReasonHeld
	}
	if e.Event != "" {
		w.env.Events.Event(ref, corev1.EventTypeWarning, reason, e.Event)
	}
}

// maxPullSecrets is how many pull secrets of a pod are read.
const maxPullSecrets = 64

// pullSecrets are the pod's, of those that exist, each once, and the names of those that cannot be read.
func (w *Worker) pullSecrets(ctx context.Context, pod *corev1.Pod) (found []*corev1.Secret, missing []string) {
	seen := map[string]bool{}
	for _, reference := range pod.Spec.ImagePullSecrets {
		if seen[reference.Name] {
			continue
		}
		if len(seen) == maxPullSecrets {
			w.env.Events.Eventf(podRef(pod), corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				"Only the first %d image pull secrets of the pod are used.", maxPullSecrets)
			break
		}
		seen[reference.Name] = true
		s, err := w.env.Refs.Secret(ctx, pod.Namespace, reference.Name)
		if err != nil {
			missing = append(missing, reference.Name)
			continue
		}
		found = append(found, s)
	}
	return found, missing
}

func (w *Worker) containerConfig(
	ctx context.Context, in Input, action Action, container *corev1.Container, img *image.Outcome,
	users *runtimeapi.UserNamespace,
) (*runtimeapi.ContainerConfig, error) {
	pod := in.Pod
	if _, err := refs.Of(pod); err != nil {
		return nil, err
	}
	ips := w.podIPs(in)
	room := translate.NewRoom(pod)
	env, err := translate.Env(ctx, pod, container, translate.EnvInput{
		Room:        room,
		Sources:     w.env.Refs,
		Services:    w.env.Services(pod.Namespace),
		Allocatable: w.env.Allocatable(),
		PodIPs:      ips,
		HostIPs:     w.env.HostIPs,
		VolumeDir: func(name string) string {
			d, err := w.env.Volumes.Path(ctx, pod, name)
			_ = err
			return d
		}, // an empty path is the answer
	})
	if err != nil {
		return nil, err
	}
	recursive, err := w.canMountRecursively(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	mounts, err := w.env.Volumes.Mounts(ctx, pod, container, recursive, func(s string) (string, error) {
		return translate.ExpandPath(s, env, room)
	})
	if err != nil {
		return nil, err
	}
	extra, err := w.ownMounts(pod, container, action.Restart, ips)
	if err != nil {
		return nil, err
	}
	devices, err := w.env.Volumes.Devices(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	cdi, err := w.env.Devices.CDIDeviceIDs(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	given, err := w.env.Plugins.RunContainerOptions(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	for name, value := range given.Envs {
		if _, ok := env[name]; !ok {
			env[name] = value
		}
	}
	return translate.Container(pod, container, translate.ContainerInput{
		Restart:     action.Restart,
		BackOff:     action.BackOff,
		Life:        action.Life,
		Env:         env,
		Mounts:      slices.Concat(mounts, given.Mounts, extra),
		Devices:     append(devices, given.Devices...),
		CDI:         append(cdi, given.CDI...),
		Annotations: given.Annotations,
		ImageRef:    img.Ref,
		Image:       img.Image,
		MemoryBytes: w.env.MemoryBytes,
		SeccompDir:  w.env.SeccompDir,
		TargetID:    target(in, container.Name),
		Users:       users,
		Room:        room,
	})
}

// target is the container whose processes an ephemeral container asked to see.
func target(in Input, name string) string {
	for i := range in.Pod.Spec.EphemeralContainers {
		e := &in.Pod.Spec.EphemeralContainers[i]
		if e.Name == name && e.TargetContainerName != "" {
			if cur := in.Observed.Latest(e.TargetContainerName); cur != nil {
				return cur.ID
			}
		}
	}
	return ""
}

// ownMounts are the kubelet's own additions: /etc/hosts and the termination message's file.
func (w *Worker) ownMounts(
	pod *corev1.Pod, container *corev1.Container, restart int, ips []string,
) ([]*runtimeapi.Mount, error) {
	dir := w.env.Volumes.PodDir(w.uid)
	var out []*runtimeapi.Mount
	taken := func(path string) bool {
		return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
			return filepath.Clean(m.MountPath) == path
		})
	}
	if !taken("/etc/hosts") {
		path := filepath.Join(dir, "etc-hosts")
		node, err := os.ReadFile(w.env.HostsFile)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read hosts file: %w", err)
		}
		if err := writeIfNew(path, translate.Hosts(pod, ips, w.env.ClusterDomain, node)); err != nil {
			return nil, err
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: path})
	}
	if container.TerminationMessagePath == "" {
		return out, nil
	}
	path := filepath.Join(dir, "containers", container.Name, strconv.Itoa(restart))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make termination log: %w", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, fmt.Errorf("make termination log: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // written by a container of any user
		return nil, fmt.Errorf("make termination log: %w", err)
	}
	return append(out, &runtimeapi.Mount{ContainerPath: container.TerminationMessagePath, HostPath: path}), nil
}

func writeIfNew(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) { // our own file
		return nil
	}
	// in place, not by rename: running containers have this very file mounted
	if err := os.WriteFile(path, content, 0o644); err != nil { // read by containers of any user
		return fmt.Errorf("write hosts file: %w", err)
	}
	return nil
}

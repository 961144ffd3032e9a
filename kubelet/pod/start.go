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
	"keelson/kubelet/pod/decide"
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
)

// startError is a start that failed, with what users read.
type startError struct {
	decide.Waiting
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
		Waiting: decide.Waiting{Reason: reason, Message: grpcText(err)},
		retry:   time.Now().Add(retryStart),
		err:     err,
	}
}

// starter makes the pod's sandbox and its containers, and runs their hooks. Its methods run in actions, concurrently
// with the worker's goroutine: what it has never changes, so it cannot reach the state of the worker.
type starter struct {
	env     *Env
	uid     string
	subject event.Subject // of its marks
	inbox   *inbox
	pulls   *pulls // of images, for the pod
}

func (s *starter) mark(step event.Step, begin time.Time, err error, detail any) {
	mk := event.Event{
		Step:      step,
		Component: s.env.Component,
		At:        begin,
		Took:      time.Since(begin),
		Subject:   s.subject,
		Detail:    detail,
	}
	if err != nil {
		mk.Err = err.Error()
	}
	s.env.Marks.Emit(mk)
}

// start brings one container to run: image, configuration, create, start, post-start hook.
func (l *loop) start(ctx context.Context, in decide.Input, a decide.Action) func() {
	c, k := podinfo.Find(in.Pod, a.Container)
	err := l.starter.tryStart(ctx, in, a, c, k)
	return func() {
		key := a.Key()
		if err == nil || ctx.Err() != nil {
			l.s.actions.clear(key)
			return
		}
		var se *startError
		if !errors.As(err, &se) {
			se = &startError{
				Waiting: decide.Waiting{Reason: reasonRun, Message: err.Error()},
				retry:   time.Now().Add(retryStart),
			}
		}
		se.Message = cut(se.Message, maxWaiting)
		f := decide.Failed{Waiting: se.Waiting, Retry: se.retry}
		if se.Reason == "ErrImagePull" {
			f.ThenAt = time.Now().Add(showPullError)
			f.Then = decide.Waiting{
				Reason:  reasonBackoff,
				Message: fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", se.Image, se.Message),
				Image:   se.Image,
			}
		}
		l.s.actions.failed[key] = f
	}
}

// showPullError is how long a failed pull shows as ErrImagePull before it shows as ImagePullBackOff.
const showPullError = 2 * time.Second

// tryStart does the steps of start. Each failure says what users read, and when the next try may be.
func (s *starter) tryStart(
	ctx context.Context, in decide.Input, action decide.Action, container *corev1.Container, kind podinfo.Kind,
) error {
	ref := containerRef(in.Pod, container, kind)
	sandbox := in.Observed.Current()
	// CRI wants the sandbox's configuration again, with the attempt and the users that it was made with.
	users, err := s.users(in.Pod)
	if err != nil {
		return failedAs(reasonConfig, err)
	}
	boxCfg, err := s.sandboxConfig(in.Pod, sandbox.Attempt, users)
	if err != nil {
		return failedAs(reasonConfig, err)
	}
	got, err := s.image(ctx, in.Pod, container, ref, boxCfg)
	if err != nil {
		return err
	}
	// CRI refuses a second container with the name and attempt of one that an earlier try created.
	if action.Replace != "" {
		if _, err := s.env.Runtime.RemoveContainer(ctx,
			&runtimeapi.RemoveContainerRequest{ContainerId: action.Replace}); err != nil {
			return failedAs(reasonCreate, err)
		}
	}
	// The configuration needs the image, which says what the container runs by default.
	begin := time.Now()
	ctr := &event.Container{
		Name:    container.Name,
		Init:    kind == podinfo.Init || kind == podinfo.SideCar,
		Restart: action.Restart,
	}
	cfg, err := s.containerConfig(ctx, in, action, container, got, users)
	if err != nil {
		s.mark(event.StepContainerCreated, begin, err, ctr)
		return failedAs(reasonConfig, err)
	}
	// The pod's cgroup is there since the sandbox, but another program may have removed it.
	if err := s.env.growCgroup(s.uid, in.Pod); err != nil {
		return failedAs(reasonCreate, err)
	}
	resp, err := s.env.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  sandbox.ID,
		Config:        cfg,
		SandboxConfig: boxCfg,
	})
	id := resp.GetContainerId()
	created := *ctr
	created.ID = id
	s.mark(event.StepContainerCreated, begin, err, &created)
	s.env.Metrics.ImageVolumes(imageVolumes(cfg), err)
	if err != nil {
		return failedAs(reasonCreate, err)
	}
	s.env.Events.Event(ref, corev1.EventTypeNormal, "Created", "Container created")
	begin = time.Now()
	_, err = s.env.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	s.mark(event.StepContainerStarted, begin, err, &created)
	if err != nil {
		// Recorded here and not with the waiting reasons: a pod that is never restarted does not wait afterwards.
		s.env.Events.Event(ref, corev1.EventTypeWarning, "Failed", "Error: "+grpcText(err))
		return failedAs(reasonRun, err)
	}
	s.env.Events.Event(ref, corev1.EventTypeNormal, "Started", "Container started")
	// The start has not succeeded before its hook has: a failed hook ends the container.
	if container.Lifecycle == nil || container.Lifecycle.PostStart == nil {
		return nil
	}
	return s.postStart(ctx, in, container, ref, id)
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

// image ensures that the container's image, and those of its image volumes, are on the node.
func (s *starter) image(
	ctx context.Context, p *corev1.Pod, container *corev1.Container, ref *corev1.ObjectReference,
	box *runtimeapi.PodSandboxConfig,
) (*image.Outcome, error) {
	secrets, missing := s.pullSecrets(ctx, p)
	got, err := s.images(ctx, p, container, ref, box, secrets)
	if failed, ok := errors.AsType[*startError](err); ok && failed.Reason == "ErrImagePull" && len(missing) > 0 {
		s.env.Events.Eventf(podRef(p), corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
			strings.Join(missing, ", "))
	}
	return got, err
}

// images ensures those images, with the pull secrets of the pod that exist.
func (s *starter) images(
	ctx context.Context, p *corev1.Pod, container *corev1.Container, ref *corev1.ObjectReference,
	box *runtimeapi.PodSandboxConfig, secrets []*corev1.Secret,
) (*image.Outcome, error) {
	for _, vm := range container.VolumeMounts {
		i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == vm.Name && v.Image != nil })
		if i < 0 {
			continue
		}
		v := p.Spec.Volumes[i].Image
		if _, err := s.ensure(ctx, container, ref, image.Request{
			PodUID:  s.uid,
			Image:   v.Reference,
			Policy:  v.PullPolicy,
			Secrets: secrets,
			Sandbox: box,
		}); err != nil {
			return nil, err
		}
	}
	return s.ensure(ctx, container, ref, image.Request{
		PodUID:  s.uid,
		Image:   container.Image,
		Policy:  container.ImagePullPolicy,
		Secrets: secrets,
		Sandbox: box,
	})
}

func (s *starter) ensure(
	ctx context.Context, container *corev1.Container, ref *corev1.ObjectReference, request image.Request,
) (*image.Outcome, error) {
	begin := time.Now()
	request.Pulling = func() {
		s.env.Events.Eventf(ref, corev1.EventTypeNormal, "Pulling", "Pulling image %q", request.Image)
		s.mark(event.StepImage, begin, nil, &event.Image{Container: container.Name, Image: request.Image})
	}
	got, err := s.env.Images.Ensure(ctx, request)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if ie, ok := errors.AsType[*image.Error](err); ok {
		s.mark(event.StepImage, begin, err, &event.Image{Container: container.Name, Image: request.Image})
		s.imageEvent(ref, ie)
		return nil, &startError{
			Waiting: decide.Waiting{Reason: ie.Reason, Message: ie.Message, Image: request.Image},
			retry:   ie.Retry,
			err:     err,
		}
	}
	if err != nil {
		return nil, err
	}
	size := int64(got.Image.GetSize()) // no image is that large
	s.mark(event.StepImage, begin, nil, &event.Image{
		Container: container.Name,
		Image:     request.Image,
		Present:   got.Present,
		Bytes:     size,
		Total:     size,
		Done:      true,
	})
	if got.Present {
		s.env.Events.Eventf(ref, corev1.EventTypeNormal, "Pulled", "Container image %q already present on machine "+
			"and can be accessed by the pod%s", request.Image, notPulled(request.Policy))
		return got, nil
	}
	s.pulls.add(begin)
	s.env.Events.Eventf(ref, corev1.EventTypeNormal, "Pulled",
		"Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		request.Image, got.Took.Truncate(time.Millisecond), got.Waited.Truncate(time.Millisecond), size)
	return got, nil
}

// notPulled returns why an image was used unpulled although the pull policy is Always, for the event about it; empty:
// the policy is another.
func notPulled(p corev1.PullPolicy) string {
	if p != corev1.PullAlways {
		return ""
	}
	return "; imagePullPolicy Always does not pull images of keelson.local, which no registry has"
}

func (s *starter) imageEvent(ref *corev1.ObjectReference, e *image.Error) {
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
		s.env.Events.Event(ref, corev1.EventTypeWarning, reason, e.Event)
	}
}

// maxPullSecrets is how many pull secrets of a pod are read.
const maxPullSecrets = 64

// pullSecrets are the pod's, of those that exist, each once, and the names of those that cannot be read.
func (s *starter) pullSecrets(ctx context.Context, pod *corev1.Pod) (found []*corev1.Secret, missing []string) {
	seen := map[string]bool{}
	for _, reference := range pod.Spec.ImagePullSecrets {
		if seen[reference.Name] {
			continue
		}
		if len(seen) == maxPullSecrets {
			s.env.Events.Eventf(podRef(pod), corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				"Only the first %d image pull secrets of the pod are used.", maxPullSecrets)
			break
		}
		seen[reference.Name] = true
		s, err := s.env.Refs.Secret(ctx, pod.Namespace, reference.Name)
		if err != nil {
			missing = append(missing, reference.Name)
			continue
		}
		found = append(found, s)
	}
	return found, missing
}

func (s *starter) containerConfig(
	ctx context.Context, in decide.Input, action decide.Action, container *corev1.Container, img *image.Outcome,
	users *runtimeapi.UserNamespace,
) (*runtimeapi.ContainerConfig, error) {
	pod := in.Pod
	if _, err := refs.Of(pod); err != nil {
		return nil, err
	}
	ips := s.podIPs(in)
	room := translate.NewRoom(pod)
	env, err := translate.Env(ctx, pod, container, translate.EnvInput{
		Room:        room,
		Sources:     s.env.Refs,
		Services:    s.env.Services(pod.Namespace),
		Allocatable: s.env.Allocatable(),
		PodIPs:      ips,
		HostIPs:     s.env.HostIPs,
		VolumeDir: func(name string) string {
			d, err := s.env.Volumes.Path(ctx, pod, name)
			_ = err
			return d
		}, // an empty path is the answer
	})
	if err != nil {
		return nil, err
	}
	recursive, err := s.canMountRecursively(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	mounts, err := s.env.Volumes.Mounts(ctx, pod, container, recursive, func(s string) (string, error) {
		return translate.ExpandPath(s, env, room)
	})
	if err != nil {
		return nil, err
	}
	extra, err := s.ownMounts(pod, container, action.Restart, ips)
	if err != nil {
		return nil, err
	}
	devices, err := s.env.Volumes.Devices(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	cdi, err := s.env.Devices.CDIDeviceIDs(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	given, err := s.env.Plugins.RunContainerOptions(ctx, pod, container)
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
		Machine:     s.env.Machine,
		SeccompDir:  s.env.SeccompDir,
		TargetID:    target(in, container.Name),
		Users:       users,
		Room:        room,
	})
}

// target is the container whose processes an ephemeral container asked to see.
func target(in decide.Input, name string) string {
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
func (s *starter) ownMounts(
	pod *corev1.Pod, container *corev1.Container, restart int, ips []string,
) ([]*runtimeapi.Mount, error) {
	dir := s.env.Volumes.PodDir(s.uid)
	var out []*runtimeapi.Mount
	taken := func(path string) bool {
		return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
			return filepath.Clean(m.MountPath) == path
		})
	}
	if !taken("/etc/hosts") {
		path := filepath.Join(dir, "etc-hosts")
		node, err := os.ReadFile(s.env.HostsFile)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read hosts file: %w", err)
		}
		if err := writeIfNew(path, translate.Hosts(pod, ips, s.env.ClusterDomain, node)); err != nil {
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

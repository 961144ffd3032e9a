// SPDX-License-Identifier: Apache-2.0

// Package image ensures that a container's image is on the node and that its pod may use it: pull policies, pull
// secrets, pull records (KEP-2535), back-off. The pod workers call it. It never lets a pod use an image that was pulled
// with another pod's secret, unless the pod's own credentials can pull it too. It never removes images.
package image

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/holdback"
	"keelson/lib/shares"
)

// ReasonHeld is the waiting reason of an image that is held back, because the process died during its pulls.
const ReasonHeld = "ImageHeldBack"

// Error is why an image cannot be used, with the container's waiting reason.
type Error struct {
	Reason  string // ErrImagePull, ImagePullBackOff, ErrImageNeverPull, InvalidImageName, ImageInspectError, ReasonHeld
	Message string
	// Retry is the earliest time of the next try.
	Retry time.Time
	// Event is the message of an additional Warning event; empty: none.
	Event string
}

func (e *Error) Error() string { return e.Message }

// Outcome is an image that is on the node.
type Outcome struct {
	Ref     string // for the creation of containers
	Image   *runtimeapi.Image
	Present bool // no pull was needed
	Took    time.Duration
	Waited  time.Duration // Took plus the wait for other pulls
}

// Request asks for the image of one container.
type Request struct {
	PodUID  string
	Image   string
	Policy  corev1.PullPolicy
	Secrets []*corev1.Secret
	Sandbox *runtimeapi.PodSandboxConfig
	// Pulling is called when a pull starts.
	Pulling func()
}

const (
	backoffMin = 10 * time.Second
	backoffMax = 5 * time.Minute
)

type failure struct {
	delay time.Duration
	until time.Time
	err   string
}

// Config has the dependencies and limits of a Manager.
type Config struct {
	Service runtimeapi.ImageServiceClient
	// Parallel is the number of concurrent pulls that one namespace may have, at least 1. All namespaces together
	// have no more, except that each may have one.
	Parallel int
	// Dir is the directory of the pull records.
	Dir string
	// Starts knows during which pulls the process died; nil: no pull is held back.
	Starts *holdback.Keeper
	// VerificationPolicy is one of the policies; NeverVerifyPreloadedImages when empty. VerificationAllowlist is for
	// NeverVerifyAllowlistedImages.
	VerificationPolicy    string
	VerificationAllowlist []string
	Log                   *slog.Logger
}

// maxNamespaces bounds the pulls beyond Config.Parallel.
const maxNamespaces = 8

// Manager pulls images, a limited number at the same time (see Config.Parallel).
type Manager struct {
	cfg     Config
	svc     runtimeapi.ImageServiceClient
	records *records
	slots   *shares.Shares // by namespace
	counters

	mu     sync.Mutex
	failed map[string]failure // by pod and image
}

// New returns a manager. It creates cfg.Dir.
func New(cfg Config) (*Manager, error) {
	if err := ValidatePolicy(cfg.VerificationPolicy, cfg.VerificationAllowlist); err != nil {
		return nil, err
	}
	rec, err := openRecords(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Manager{
		cfg:      cfg,
		svc:      cfg.Service,
		records:  rec,
		slots:    shares.New(cfg.Parallel, cfg.Parallel+maxNamespaces),
		counters: newCounters(),
		failed:   map[string]failure{},
	}, nil
}

// Ensure returns when the image is on the node and the pod may use it. The error is an *Error, or ctx's.
func (m *Manager) Ensure(ctx context.Context, request Request) (*Outcome, error) {
	var found need
	defer func() { m.count(request.Policy, found) }()
	ref, err := Normalize(request.Image)
	if err != nil {
		return nil, &Error{
			Reason:  "InvalidImageName",
			Retry:   time.Now().Add(backoffMax),
			Message: fmt.Sprintf("Failed to apply default image tag %q: %v", request.Image, err),
			Event:   fmt.Sprintf("Failed to apply default image tag %q: %v", request.Image, err),
		}
	}
	if request.Policy != corev1.PullAlways || nodeLocal(ref) {
		img, err := m.inspect(ctx, ref)
		if err != nil {
			return nil, err
		}
		found.present = new(img != nil)
		if img != nil && m.accessible(ref, img.GetId(), Credentials(request.Secrets, ref)) {
			found.pull = new(false)
			return &Outcome{Ref: cmp.Or(img.GetId(), ref), Image: img, Present: true}, nil
		}
		if request.Policy == corev1.PullNever {
			return nil, &Error{
				Reason:  "ErrImageNeverPull",
				Retry:   time.Now().Add(backoffMin),
				Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", request.Image),
				Event:   fmt.Sprintf("Container image %q is not present with pull policy of Never", request.Image),
			}
		}
	}
	found.pull = new(true)
	key := request.PodUID + "/" + request.Image
	if err := m.backoff(key, request.Image); err != nil {
		return nil, err
	}
	return m.pull(ctx, key, ref, request)
}

// nodeLocal reports whether an image has no registry: keelson.local is for images that were loaded on the node, so they
// are never pulled. (Without a tag their pull policy is Always, and the pull would fail.)
func nodeLocal(ref string) bool { return strings.HasPrefix(ref, "keelson.local/") }

func (m *Manager) inspect(ctx context.Context, ref string) (*runtimeapi.Image, error) {
	resp, err := m.svc.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		msg := fmt.Sprintf("Failed to inspect image %q: %v", ref, err)
		return nil, &Error{
			Reason:  "ImageInspectError",
			Message: msg,
			Event:   msg,
			Retry:   time.Now().Add(backoffMin),
		}
	}
	return resp.GetImage(), nil
}

func (m *Manager) backoff(key, image string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.failed[key]
	if !ok || !time.Now().Before(f.until) {
		return nil
	}
	return &Error{
		Reason:  "ImagePullBackOff",
		Message: fmt.Sprintf("Back-off pulling image %q: %s", image, f.err),
		Retry:   f.until,
	}
}

func (m *Manager) pull(ctx context.Context, key, ref string, request Request) (*Outcome, error) {
	if request.Pulling != nil {
		request.Pulling()
	}
	begin := time.Now()
	leave, err := m.slots.Enter(ctx, request.Sandbox.GetMetadata().GetNamespace())
	if err != nil {
		return nil, err
	}
	defer leave()
	if h := m.cfg.Starts.Enter(holdback.Image(ref), nil); h != nil {
		return nil, &Error{
			Reason:  ReasonHeld,
			Message: h.Message,
			Event:   h.Message,
			Retry:   h.Until,
		}
	}
	started := time.Now()
	id, err := m.pullWithCredentials(ctx, ref, request)
	m.cfg.Starts.Leave(holdback.Image(ref), err == nil)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, m.fail(key, request.Image, err)
	}
	m.mu.Lock()
	delete(m.failed, key)
	m.mu.Unlock()
	took := time.Since(started)
	img, err := m.inspect(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &Outcome{
		Ref:    cmp.Or(id, img.GetId(), ref),
		Image:  img,
		Took:   took,
		Waited: time.Since(begin),
	}, nil
}

// pullWithCredentials pulls with each matching credential in turn, or without credentials, and records which one
// succeeded.
func (m *Manager) pullWithCredentials(ctx context.Context, ref string, r Request) (string, error) {
	if err := m.records.begin(ref); err != nil {
		return "", err
	}
	id, used, err := m.tryCredentials(ctx, ref, r)
	var creds *imagePullCredentials
	if err == nil {
		creds = pulledWith(used)
	}
	if err := m.records.end(ref, id, creds); err != nil {
		m.cfg.Log.Warn("record an image pull", "image", ref, "err", err)
	}
	if err != nil {
		return "", err
	}
	if err := m.prune(ctx); err != nil && ctx.Err() == nil {
		m.cfg.Log.Warn("prune records of image pulls", "err", err)
	}
	return id, nil
}

func (m *Manager) tryCredentials(ctx context.Context, ref string, r Request) (id string, used *Credential, err error) {
	spec := &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: r.Image}
	pull := func(a *runtimeapi.AuthConfig) (string, error) {
		resp, err := m.svc.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: a, SandboxConfig: r.Sandbox})
		return resp.GetImageRef(), err
	}
	creds := Credentials(r.Secrets, ref)
	for i := range creds {
		if id, err = pull(creds[i].Auth); err == nil {
			return id, &creds[i], nil
		}
	}
	if len(creds) == 0 {
		id, err = pull(nil)
	}
	return id, nil, err
}

// fail returns the error of a failed pull, and records it for the back-off. A pull that the runtime did not begin
// (Aborted) says nothing about the image: it counts as no failure, and is tried again after the shortest time.
func (m *Manager) fail(key, image string, err error) *Error {
	msg := err.Error()
	if s, ok := status.FromError(err); ok {
		msg = fmt.Sprintf("rpc error: code = %s desc = %s", s.Code(), s.Message())
	}
	retry := time.Now().Add(backoffMin)
	if status.Code(err) != codes.Aborted {
		retry = m.recordFailure(key, msg)
	}
	return &Error{
		Reason:  "ErrImagePull",
		Message: msg,
		Retry:   retry,
		Event:   fmt.Sprintf("Failed to pull image %q: %s", image, msg),
	}
}

// recordFailure returns when the next try is.
func (m *Manager) recordFailure(key, msg string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.failed[key]
	f.delay = min(max(2*f.delay, backoffMin), backoffMax)
	f.until = time.Now().Add(f.delay)
	f.err = "ErrImagePull: " + msg
	m.failed[key] = f
	return f.until
}

// Forget drops the back-off of a pod.
func (m *Manager) Forget(podUID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.failed {
		if strings.HasPrefix(k, podUID+"/") {
			delete(m.failed, k)
		}
	}
}

// Normalize adds the default tag to an image reference. An invalid reference is an error.
func Normalize(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	if reference.IsNameOnly(named) {
		return image + ":latest", nil
	}
	return image, nil
}

// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"path/filepath"
	"strings"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/kubelet/downward"
	"keelson/kubelet/podinfo"
	"keelson/lib/inroot"
)

// file is one file of a volume from API objects. UID -1: the kubelet's user.
type file struct {
	size int
	data func() []byte // makes the content, for the moment in which it is written or compared
	mode int32
	uid  int
}

// payload collects the files of a volume from API objects.
type payload struct {
	in       Input
	volume   string
	ledger   *ledger
	src      Sources
	dir      *inroot.Dir // the volume, which may have an earlier token; nil: not a projected volume
	stateDir string      // has the state of certificates
	files    map[string]file
	refresh  time.Time
}

// writeVolume sets up a volume of files from API objects. The files are written to a new directory and become visible
// by one rename. They have their owner before that. Existing files are not modified.
func (m *Manager) writeVolume(
	ctx context.Context, root *inroot.Dir, in Input, volume *corev1.Volume,
) (time.Time, error) {
	w := &payload{
		in:     in,
		volume: volume.Name,
		ledger: m.ledger,
		src:    m.sources,
		files:  map[string]file{},
	}
	at := m.within(m.ownDir(in.Pod, volume))
	made, err := root.MkdirAllExact(at, 0o755)
	if err != nil {
		return time.Time{}, fmt.Errorf("make volume: %w", err)
	}
	dir, err := root.OpenDir(at)
	if err != nil {
		return time.Time{}, fmt.Errorf("open volume: %w", err)
	}
	defer func() { _ = dir.Close() }() // O_PATH
	if len(made) > 0 {
		if err := dir.Chmod(".", 0o777); err != nil { // as Kubernetes' kubelet does; containers mount it read-only
			return time.Time{}, fmt.Errorf("make volume: %w", err)
		}
		if err := applyFSGroup(dir, ".", in.Pod, false); err != nil {
			return time.Time{}, fmt.Errorf("make volume: %w", err)
		}
	}
	if volume.Projected != nil {
		w.dir = dir
		w.stateDir = filepath.Join(m.secrets(), string(in.Pod.UID), ".certificates") // no volume has such a name
	}
	before := m.ledger.begin(in.Pod, volume.Name)
	err = w.collect(ctx, volume)
	if err == nil {
		_, err = writeAtomically(dir, w.files, mountsBelow(in.Pod, volume.Name), func(name string) error {
			return applyFSGroup(dir, name, in.Pod, false)
		})
	}
	if err != nil {
		m.ledger.set(in.Pod, volume.Name, before)
		return time.Time{}, err
	}
	return w.refresh, nil
}

// put adds a file of size bytes, which data makes when all are counted. A file that replaces an earlier one counts,
// too.
func (w *payload) put(target string, size int, data func() []byte, f file) error {
	p, err := cleanPath(target)
	if err != nil {
		return err
	}
	if err := w.ledger.add(w.in.Pod, w.volume, sizeOfFile(p, size)); err != nil {
		return err
	}
	f.size = size
	f.data = data
	w.files[p] = f
	return nil
}

func (w *payload) collect(ctx context.Context, volume *corev1.Volume) error {
	switch {
	case volume.ConfigMap != nil:
		s := volume.ConfigMap
		return w.configMap(ctx, s.Name, s.Items, s.Optional, modeOf(s.DefaultMode))
	case volume.Secret != nil:
		s := volume.Secret
		return w.secret(ctx, s.SecretName, s.Items, s.Optional, modeOf(s.DefaultMode))
	case volume.DownwardAPI != nil:
		return w.downward(volume.DownwardAPI.Items, modeOf(volume.DownwardAPI.DefaultMode))
	}
	mode := modeOf(volume.Projected.DefaultMode)
	var errs []error
	for i := range volume.Projected.Sources {
		if len(errs) == maxSourceErrors {
			break
		}
		if err := w.project(ctx, &volume.Projected.Sources[i], sourceName(volume.Name, i), mode); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// maxSourceErrors is how many failed sources of a projected volume are reported.
const maxSourceErrors = 8

// project adds the files of one source; at is its path in the pod, for errors.
func (w *payload) project(ctx context.Context, projection *corev1.VolumeProjection, at string, mode int32) error {
	switch {
	case projection.ConfigMap != nil:
		return w.configMap(ctx, projection.ConfigMap.Name, projection.ConfigMap.Items, projection.ConfigMap.Optional,
			mode)
	case projection.Secret != nil:
		return w.secret(ctx, projection.Secret.Name, projection.Secret.Items, projection.Secret.Optional, mode)
	case projection.DownwardAPI != nil:
		return w.downward(projection.DownwardAPI.Items, mode)
	case projection.ServiceAccountToken != nil:
		return w.token(ctx, projection.ServiceAccountToken, mode)
	case projection.ClusterTrustBundle != nil:
		return w.bundle(ctx, projection.ClusterTrustBundle, mode)
	case projection.PodCertificate != nil:
		return w.podCertificate(ctx, projection.PodCertificate, at, mode)
	}
	return errors.New("projected volume source is not supported by this node")
}

func modeOf(m *int32) int32 {
	if m == nil {
		return 0o644
	}
	return *m
}

func (w *payload) configMap(
	ctx context.Context, name string, items []corev1.KeyToPath, optional *bool, mode int32,
) error {
	opt := optional != nil && *optional
	cm, err := w.src.ConfigMap(ctx, w.in.Pod.Namespace, name)
	if apierrors.IsNotFound(err) && opt {
		return nil
	}
	if err != nil {
		return err
	}
	return w.add(keys{text: cm.Data, binary: cm.BinaryData}, items, opt, mode, "config")
}

func (w *payload) secret(ctx context.Context, name string, items []corev1.KeyToPath, optional *bool, mode int32) error {
	opt := optional != nil && *optional
	s, err := w.src.Secret(ctx, w.in.Pod.Namespace, name)
	if apierrors.IsNotFound(err) && opt {
		return nil
	}
	if err != nil {
		return err
	}
	return w.add(keys{binary: s.Data}, items, opt, mode, "secret")
}

// keys are the keys of a ConfigMap or Secret.
type keys struct {
	text   map[string]string
	binary map[string][]byte
}

// value returns the size of a key's value, and what makes its bytes.
func (k keys) value(key string) (size int, data func() []byte, ok bool) {
	if v, ok := k.text[key]; ok {
		return len(v), func() []byte { return []byte(v) }, true
	}
	v, ok := k.binary[key]
	return len(v), func() []byte { return v }, ok
}

func (w *payload) add(data keys, items []corev1.KeyToPath, opt bool, mode int32, kind string) error {
	if len(items) == 0 {
		for key := range data.all() {
			if err := w.addKey(data, corev1.KeyToPath{Key: key, Path: key}, opt, mode, kind); err != nil {
				return err
			}
		}
		return nil
	}
	for _, it := range items {
		if err := w.addKey(data, it, opt, mode, kind); err != nil {
			return err
		}
	}
	return nil
}

// all yields every key once.
func (k keys) all() iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range k.text {
			if !yield(key) {
				return
			}
		}
		for key := range k.binary {
			if _, twice := k.text[key]; !twice && !yield(key) {
				return
			}
		}
	}
}

func (w *payload) addKey(data keys, it corev1.KeyToPath, opt bool, mode int32, kind string) error {
	size, value, ok := data.value(it.Key)
	if !ok && opt {
		return nil
	}
	if !ok {
		return fmt.Errorf("references non-existent %s key: %s", kind, it.Key)
	}
	if it.Mode != nil {
		mode = *it.Mode
	}
	return w.put(it.Path, size, value, file{mode: mode, uid: -1})
}

// cleanPath refuses a path outside the volume.
func cleanPath(p string) (string, error) {
	c := path.Clean(p)
	if p == "" || path.IsAbs(p) || strings.HasPrefix(c, "..") {
		return "", fmt.Errorf("invalid path: must be relative and not start with '..': %s", p)
	}
	return c, nil
}

func (w *payload) downward(items []corev1.DownwardAPIVolumeFile, mode int32) error {
	for _, it := range items {
		var v string
		var err error
		if it.FieldRef != nil {
			v, err = downward.Field(w.in.Pod, it.FieldRef.FieldPath, w.in.PodIPs, w.in.HostIPs)
		} else if r := it.ResourceFieldRef; r != nil {
			c, _ := podinfo.Find(w.in.Pod, r.ContainerName)
			if c == nil {
				return fmt.Errorf("container %s not found", r.ContainerName)
			}
			v, err = downward.Resource(w.in.Pod, c, r, w.in.Allocatable)
		}
		if err != nil {
			return err
		}
		f := file{mode: mode, uid: -1}
		if it.Mode != nil {
			f.mode = *it.Mode
		}
		if err := w.put(it.Path, len(v), func() []byte { return []byte(v) }, f); err != nil {
			return err
		}
	}
	return nil
}

// token projects a token of the pod's service account, bound to the pod. The token in the volume is used until 80 % of
// its lifetime have passed, so that another SetUp, or a restart of the kubelet, requests no new token.
func (w *payload) token(ctx context.Context, projection *corev1.ServiceAccountTokenProjection, mode int32) error {
	pod := w.in.Pod
	target, err := cleanPath(projection.Path)
	if err != nil {
		return err
	}
	seconds := int64(3600)
	if projection.ExpirationSeconds != nil {
		seconds = *projection.ExpirationSeconds
	}
	file := w.modeFor(mode)
	if old, renew, ok := existingToken(w.dir, target, projection.Audience, time.Now()); ok {
		w.renewAt(renew)
		return w.putBytes(target, old, file)
	}
	tokenRequest := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef: &authv1.BoundObjectReference{
			APIVersion: "v1",
			Kind:       "Pod",
			Name:       pod.Name,
			UID:        pod.UID,
		},
	}}
	if projection.Audience != "" {
		tokenRequest.Spec.Audiences = []string{projection.Audience}
	}
	got, err := w.src.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, tokenRequest)
	if err != nil {
		return fmt.Errorf("failed to fetch token: %w", err)
	}
	if err := w.putBytes(target, []byte(got.Status.Token), file); err != nil {
		return err
	}
	w.renewAt(time.Now().Add(renewAfter(lifeOf(got.Status.Token, seconds))))
	return nil
}

func (w *payload) renewAt(t time.Time) {
	if w.refresh.IsZero() || t.Before(w.refresh) {
		w.refresh = t
	}
}

// oneUser returns the user of all containers, if it is the same in all.
func oneUser(p *corev1.Pod) (int, bool) {
	uid := int64(-1)
	for c, k := range podinfo.All(p) {
		if k == podinfo.Ephemeral {
			continue
		}
		var u *int64
		if p.Spec.SecurityContext != nil {
			u = p.Spec.SecurityContext.RunAsUser
		}
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			u = c.SecurityContext.RunAsUser
		}
		if u == nil || uid >= 0 && uid != *u {
			return 0, false
		}
		uid = *u
	}
	return int(uid), uid >= 0
}

// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/kubelet/rootdir"
	"keelson/lib/inroot"
)

// Volume is a mounted volume of a pod.
type Volume struct {
	// Path is the mounted directory, or the device of a block volume.
	Path string
	// OwnedByGroup: the kubelet sets the owner of its files to the pod's fsGroup. Fresh: it has just been published.
	OwnedByGroup, Fresh bool
	// Refresh is when to call SetUp again; zero: never.
	Refresh time.Time
}

const (
	// attachedWithin is how long a pod waits for the attachment before an event is recorded.
	attachedWithin = 2*time.Minute + 3*time.Second
	// republishEvery is the interval for drivers with requiresRepublish, and for comparing a volume with its claim's
	// size.
	republishEvery = time.Minute
)

// SetUp mounts the volume in the pod's directory; if it is mounted already, it does nothing. It waits until the volume
// is attached. Errors for users are *Error.
func (m *Mounter) SetUp(ctx context.Context, request Request) (Volume, error) {
	spec, err := specOf(request)
	if err != nil {
		return Volume{}, err
	}
	obj, err := m.object(ctx, spec)
	if err != nil {
		return Volume{}, &Error{spec.op("SetUp", "SetUp"), spec.name, err}
	}
	driver, err := m.drivers.await(spec.driver, string(request.Pod.UID))
	if err == nil {
		err = driver.learn(ctx)
	}
	if v, ok := m.kept(spec); err != nil && ok {
		return v, nil // it republishes after it has registered again
	}
	if err != nil && spec.Inline != nil {
		return Volume{}, &Error{
			spec.op("SetUp", ""), spec.name,
			fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: %w",
				err),
		}
	}
	if err != nil {
		return Volume{}, &Error{
			spec.op("MountDevice", "SetUp"), spec.name,
			fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: %w", err),
		}
	}
	attach := spec.PV != nil && (obj == nil || obj.Spec.AttachRequired == nil || *obj.Spec.AttachRequired)
	v, u := m.use(spec, string(request.Pod.UID), attach)
	if err := m.begin(ctx, v); err != nil {
		return Volume{}, &Error{spec.op("SetUp", "SetUp"), spec.name, err}
	}
	defer v.end()
	return m.setUp(ctx, &job{
		spec:   spec,
		object: obj,
		driver: driver,
		volume: v,
		use:    u,
		uid:    string(request.Pod.UID),
	})
}

// kept returns a volume that is still mounted in the pod while its driver is not registered.
func (m *Mounter) kept(s *spec) (Volume, bool) {
	root, err := inroot.Open(string(m.cfg.Dir))
	if err != nil {
		return Volume{}, false
	}
	defer func() { _ = root.Close() }() // O_PATH
	dir, target := publishedAt(string(s.Pod.UID), s.block, s.name)
	if !mounted(root, dir, target) {
		return Volume{}, false
	}
	return Volume{Path: m.at(target)}, true
}

// mounted reports whether a volume is published. It checks record and mount table, since mounts do not survive a
// reboot.
func mounted(root *inroot.Dir, dir, target string) bool {
	if _, err := root.Lstat(filepath.Join(dir, published)); err != nil {
		return false
	}
	i, err := root.Lstat(target)
	return err == nil && i.MountRoot
}

// object returns the CSIDriver object; nil: there is none.
func (m *Mounter) object(ctx context.Context, s *spec) (*storagev1.CSIDriver, error) {
	obj, err := m.cfg.API.StorageV1().CSIDrivers().Get(ctx, s.driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		obj = nil
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("read CSIDriver %s: %w", s.driver, err)
	}
	if s.Inline == nil {
		return obj, nil
	}
	var modes []storagev1.VolumeLifecycleMode
	if obj != nil {
		modes = obj.Spec.VolumeLifecycleModes
	}
	if !slices.Contains(modes, storagev1.VolumeLifecycleEphemeral) {
		return nil, fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to check volume lifecycle mode: volume "+
			"mode %q not supported by driver %s (only supports %q)", s.lifecycle(), s.driver, modes)
	}
	return obj, nil
}

// job is one call of SetUp. It holds the volume's turn.
type job struct {
	*spec
	object  *storagev1.CSIDriver
	driver  *driver
	volume  *volume
	use     *use
	uid     string
	context map[string]string // the VolumeAttachment's attachmentMetadata (publish context)
	root    *inroot.Dir
}

func (m *Mounter) setUp(ctx context.Context, j *job) (Volume, error) {
	root, err := inroot.Open(string(m.cfg.Dir))
	if err != nil {
		return Volume{}, fmt.Errorf("open the kubelet's directory: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	j.root = root
	dir, target := publishedAt(j.uid, j.block, j.name)
	out := Volume{Path: filepath.Join(string(m.cfg.Dir), target)}
	group := j.group()
	out.OwnedByGroup = group == "" && !j.ReadOnly && !j.block && j.ownedByGroup(j.object)
	there := j.there(dir, target)
	republish := j.object != nil && j.object.Spec.RequiresRepublish != nil && *j.object.Spec.RequiresRepublish
	if !there || republish {
		if err := m.mount(ctx, j, dir, target, group, there); err != nil {
			return Volume{}, err
		}
		out.Fresh = true
	}
	m.mu.Lock()
	j.use.published = true
	m.mu.Unlock()
	if republish {
		out.Refresh = soon()
	}
	if j.Claim != nil && j.driver.can(csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		m.expand(ctx, j, target)
		out.Refresh = soon()
	}
	return out, nil
}

// soon is when SetUp runs again. A random part spreads pods that started together.
func soon() time.Time { return time.Now().Add(republishEvery + rand.N(republishEvery/4)) } // no secret

// there reports whether the volume is published in the pod, by this run of the kubelet or an earlier one.
func (j *job) there(dir, target string) bool {
	if mounted(j.root, dir, target) {
		return true
	}
	_, err := j.root.Lstat(target)
	return err == nil && j.use.published // some drivers mount nothing
}

// group is the fsGroup for a driver that applies it itself (VOLUME_MOUNT_GROUP).
func (j *job) group() string {
	sc := j.Pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil || j.block || !j.driver.can(csiapi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		return ""
	}
	return fmt.Sprint(*sc.FSGroup)
}

// mount stages and publishes the volume; again: only publishes.
func (m *Mounter) mount(ctx context.Context, j *job, dir, target, group string, again bool) error {
	attached := j.use.AttachmentID != ""
	if attached {
		data, err := m.awaitAttached(ctx, j)
		if err != nil {
			return err
		}
		j.context = data
	}
	if err := j.use.save(j.root, dir); err != nil {
		return &Error{j.op("SetUp", "SetUp"), j.name, fmt.Errorf("keep the record of the volume: %w", err)}
	}
	stages := j.Inline == nil && j.driver.can(csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	if stages && !again && !j.volume.ready {
		if err := m.stage(ctx, j, group); err != nil {
			return &Error{j.op("MountDevice", "SetUp"), j.name, err}
		}
	}
	if err := m.publishVolume(ctx, j, target, group, stages); err != nil {
		return &Error{j.op("SetUp", "MapPodDevice"), j.name, err}
	}
	return j.root.WriteFile(filepath.Join(dir, published), nil, 0o640)
}

func (m *Mounter) stage(ctx context.Context, j *job, group string) error {
	dir, target := j.stagedAt(j.block, j.name)
	secrets, err := secretData(ctx, m.cfg.Objects, j.PV.Spec.CSI.NodeStageSecretRef)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: fetching NodeStageSecretRef: %w", err)
	}
	if err := j.use.save(j.root, dir); err != nil {
		return err
	}
	j.volume.staged = true
	j.volume.record = j.use.record // or in part: it must be unstaged
	if err := j.root.MkdirAll(target, 0o750); err != nil {
		return err
	}
	_, err = call(ctx, j.driver.within, j.driver.node.NodeStageVolume, &csiapi.NodeStageVolumeRequest{
		VolumeId:          j.handle,
		PublishContext:    j.context,
		StagingTargetPath: j.driver.pathSeen(target),
		VolumeCapability:  j.capability(j.driver, group),
		Secrets:           secrets,
		VolumeContext:     j.attributes,
	})
	j.volume.ready = err == nil
	return err
}

func (m *Mounter) publishVolume(ctx context.Context, j *job, target, group string, staged bool) error {
	info, secrets, err := m.volumeContext(ctx, j)
	if err != nil {
		return err
	}
	if err := j.root.MkdirAll(filepath.Dir(target), 0o750); err != nil { // the driver creates target itself
		return err
	}
	req := &csiapi.NodePublishVolumeRequest{
		VolumeId:         j.handle,
		PublishContext:   j.context,
		TargetPath:       j.driver.pathSeen(target),
		VolumeCapability: j.capability(j.driver, group),
		Readonly:         j.ReadOnly,
		Secrets:          secrets,
		VolumeContext:    info,
	}
	if staged {
		_, at := j.stagedAt(j.block, j.name)
		req.StagingTargetPath = j.driver.pathSeen(at)
	}
	_, err = call(ctx, j.driver.within, j.driver.node.NodePublishVolume, req)
	if err != nil {
		return err
	}
	if _, err := j.root.Lstat(target); errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("driver %s has published the volume, and nothing is at %s: its pod must mount %s/pods with "+
			"mountPropagation Bidirectional",
			j.driver.name, m.at(target), rootdir.Standard)
	}
	return nil
}

// volumeContext returns the volume context and the secrets of NodePublishVolume.
func (m *Mounter) volumeContext(ctx context.Context, j *job) (info, secrets map[string]string, err error) {
	if j.Inline != nil && j.Inline.NodePublishSecretRef != nil {
		secrets, err = secretData(ctx, m.cfg.Objects, &corev1.SecretReference{
			Namespace: j.Pod.Namespace,
			Name:      j.Inline.NodePublishSecretRef.Name,
		})
	} else if j.PV != nil {
		secrets, err = secretData(ctx, m.cfg.Objects, j.PV.Spec.CSI.NodePublishSecretRef)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("fetching NodePublishSecretRef: %w", err)
	}
	info = maps.Clone(j.attributes)
	if info == nil {
		info = map[string]string{}
	}
	if o := j.object; o != nil && o.Spec.PodInfoOnMount != nil && *o.Spec.PodInfoOnMount {
		info["csi.storage.k8s.io/pod.name"] = j.Pod.Name
		info["csi.storage.k8s.io/pod.namespace"] = j.Pod.Namespace
		info["csi.storage.k8s.io/pod.uid"] = j.uid
		info["csi.storage.k8s.io/serviceAccount.name"] = j.Pod.Spec.ServiceAccountName
		info["csi.storage.k8s.io/ephemeral"] = fmt.Sprint(j.Inline != nil)
	}
	asked, err := m.tokens.all(ctx, j)
	if err != nil || asked == "" {
		return info, secrets, err
	}
	if o := j.object; o.Spec.ServiceAccountTokenInSecrets != nil && *o.Spec.ServiceAccountTokenInSecrets {
		if secrets = maps.Clone(secrets); secrets == nil {
			secrets = map[string]string{}
		}
		secrets[tokensKey] = asked
		return info, secrets, nil
	}
	info[tokensKey] = asked
	return info, secrets, nil
}

func secretData(ctx context.Context, objects Objects, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := objects.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("failed to find the secret %s in the namespace %s: %w", ref.Name, ref.Namespace, err)
	}
	out := map[string]string{}
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

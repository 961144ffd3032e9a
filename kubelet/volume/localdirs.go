// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/api/core/localvolume"
	"keelson/lib/inroot"
	"keelson/lib/keyed"
)

// LocalDirs manages the local volumes that the cluster provisions on this node: one directory each, named after the
// PersistentVolume. It creates a directory when the first pod uses the volume. When the PersistentVolume is being
// deleted and is not bound, it removes the directory, unless the reclaim policy is Retain, and then the node's
// finalizer. It never removes a directory without a PersistentVolume.
type LocalDirs struct {
	dir, node string
	client    kubernetes.Interface
	log       *slog.Logger
}

// NewLocalDirs returns the LocalDirs below dir. It does no I/O.
func NewLocalDirs(dir, node string, c kubernetes.Interface, log *slog.Logger) *LocalDirs {
	return &LocalDirs{
		dir:    filepath.Clean(dir),
		node:   node,
		client: c,
		log:    log,
	}
}

// Path returns the directory of a volume.
func (l *LocalDirs) Path(name string) string { return filepath.Join(l.dir, name) }

// open opens the parent directory, and checks that name is a valid volume name.
func (l *LocalDirs) open(name string) (*inroot.Dir, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return nil, fmt.Errorf("%q is no name of a volume", name)
	}
	return inroot.Open(l.dir)
}

// Make creates the directory of a volume with mode 0777. An existing directory is not changed.
func (l *LocalDirs) Make(name string) error {
	if err := os.MkdirAll(l.dir, 0o750); err != nil {
		return fmt.Errorf("make the directory of local volumes: %w", err)
	}
	root, err := l.open(name)
	if err != nil {
		return fmt.Errorf("make local volume: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	if _, err := root.MkdirAllExact(name, 0o777); err != nil {
		return fmt.Errorf("make local volume: %w", err)
	}
	return nil
}

// remove removes the directory of a volume. A missing directory is no error.
func (l *LocalDirs) remove(name string) error {
	root, err := l.open(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove local volume: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.RemoveAll(name); err != nil {
		return fmt.Errorf("remove local volume: %w", err)
	}
	return nil
}

// Run removes the directories of deleted volumes, until ctx is done or the API server forbids it.
func (l *LocalDirs) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inf := coreinformers.NewFilteredPersistentVolumeInformer(l.client, 0, cache.Indexers{}, func(
		o *metav1.ListOptions,
	) {
		o.LabelSelector = labels.Set{localvolume.NodeLabel: l.node}.String()
	})
	volumes := corelisters.NewPersistentVolumeLister(inf.GetIndexer())
	queue := keyed.New(keyed.Config[string]{
		Do: func(ctx context.Context, name string) (time.Duration, error) {
			return 0, l.removeOne(ctx, volumes, name)
		},
		Workers:   removeWorkers,
		Pause:     5 * time.Millisecond,
		PauseMost: 15 * time.Minute,
		Failed: func(name string, err error) {
			l.log.Warn("remove local volume", "volume", name, "err", err)
		},
	})
	look := func(o any) {
		if v, ok := o.(*corev1.PersistentVolume); ok && l.mustRemove(v) {
			queue.Add(v.Name)
		}
	}
	err := errors.Join(
		inf.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if apierrors.IsForbidden(err) {
				l.log.Info("local volumes are not removed: the API server does not let nodes watch theirs", "err", err)
				cancel()
				return
			}
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}),
		errOf(inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: look,
			UpdateFunc: func(_, o any) {
				look(o)
			},
		})),
	)
	if err != nil {
		l.log.Error("watch local volumes", "err", err) // it fails only for an informer that runs
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { inf.RunWithContext(ctx) })
	_ = queue.Run(ctx) // it returns no error
}

// removeWorkers is the number of workers, so that a large directory does not delay the others.
const removeWorkers = 4

// removeOne removes the directory of a volume that is deleted. After a concurrent update it is called again: the watch
// brings the new version.
func (l *LocalDirs) removeOne(ctx context.Context, volumes corelisters.PersistentVolumeLister, name string) error {
	v, err := volumes.Get(name)
	if err == nil {
		err = l.release(ctx, v)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return keyed.ErrAgain
	}
	return err
}

func errOf[T any](_ T, err error) error { return err }

// mustRemove reports whether a volume is being deleted, is not bound, and has this node's finalizer.
func (l *LocalDirs) mustRemove(v *corev1.PersistentVolume) bool {
	return localvolume.On(v, l.node) && v.DeletionTimestamp != nil && v.Status.Phase != corev1.VolumeBound &&
		slices.Contains(v.Finalizers, localvolume.Finalizer)
}

// release removes the directory, unless the reclaim policy is Retain, and then the finalizer.
func (l *LocalDirs) release(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !l.mustRemove(pv) {
		return nil
	}
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		if err := l.remove(pv.Name); err != nil {
			return err
		}
	}
	rest := slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == localvolume.Finalizer })
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pv.UID, "resourceVersion": pv.ResourceVersion, "finalizers": rest},
	})
	if err != nil {
		return err
	}
	_, err = l.client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	return err
}

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
	"k8s.io/client-go/util/workqueue"

	"keelson/api/core/localvolume"
	"keelson/lib/inroot"
)

// LocalDirs keeps the local volumes that the cluster provisions on this node: a directory each, by the name of its PersistentVolume.
// A directory is made when the first pod uses the volume. It is removed when the volume is being deleted, and by then has no claim
// any more, unless its policy is Retain; only after that the volume loses the node's finalizer. Directories of volumes that nobody
// knows are left alone.
type LocalDirs struct {
	dir, node string
	client    kubernetes.Interface
	log       *slog.Logger
}

// NewLocalDirs returns the volumes below dir. It touches nothing.
func NewLocalDirs(dir, node string, c kubernetes.Interface, log *slog.Logger) *LocalDirs {
	return &LocalDirs{dir: filepath.Clean(dir), node: node, client: c, log: log}
}

// Path is the directory of a volume.
func (l *LocalDirs) Path(name string) string { return filepath.Join(l.dir, name) }

// open opens the directory of all volumes, and checks that name is that of one.
func (l *LocalDirs) open(name string) (*inroot.Dir, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return nil, fmt.Errorf("%q is no name of a volume", name)
	}
	return inroot.Open(l.dir)
}

// Make makes the directory of a volume, which every user of a container may write to. One that is there stays as it is.
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

// remove removes the directory of a volume. None is no error.
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

// Run removes the directories of volumes that are being deleted, until ctx is done or the server says that nodes may not.
func (l *LocalDirs) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inf := coreinformers.NewFilteredPersistentVolumeInformer(l.client, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector = labels.Set{localvolume.NodeLabel: l.node}.String()
	})
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	look := func(o any) {
		if v, ok := o.(*corev1.PersistentVolume); ok && l.doomed(v) {
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
		second(inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, o any) { look(o) }})),
	)
	if err != nil {
		l.log.Error("watch local volumes", "err", err) // it fails only for an informer that runs
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { inf.RunWithContext(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		queue.ShutDown()
	})
	volumes := corelisters.NewPersistentVolumeLister(inf.GetIndexer())
	for range removers {
		wg.Go(func() {
			for l.removeNext(ctx, queue, volumes) {
			}
		})
	}
	<-ctx.Done()
}

// removers is how many directories are removed at once: a large one does not hold up the others.
const removers = 4

// removeNext removes one directory; false: there will be no more.
func (l *LocalDirs) removeNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], volumes corelisters.PersistentVolumeLister) bool {
	name, quit := queue.Get()
	if quit {
		return false
	}
	defer queue.Done(name)
	v, err := volumes.Get(name)
	if err == nil {
		err = l.finish(ctx, v)
	}
	switch {
	case err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil:
		queue.Forget(name)
	case apierrors.IsConflict(err): // somebody else let go of it at the same time
		queue.AddRateLimited(name)
	default:
		l.log.Warn("remove local volume", "volume", name, "err", err)
		queue.AddRateLimited(name)
	}
	return true
}

func second[T any](_ T, err error) error { return err }

// doomed tells whether a volume waits for this node to remove it. While it is bound, pods may use it.
func (l *LocalDirs) doomed(v *corev1.PersistentVolume) bool {
	return localvolume.On(v, l.node) && v.DeletionTimestamp != nil && v.Status.Phase != corev1.VolumeBound &&
		slices.Contains(v.Finalizers, localvolume.Finalizer)
}

// finish removes the directory, if the volume's policy says so, and then the finalizer.
func (l *LocalDirs) finish(ctx context.Context, v *corev1.PersistentVolume) error {
	if !l.doomed(v) {
		return nil
	}
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		if err := l.remove(v.Name); err != nil {
			return err
		}
	}
	rest := slices.DeleteFunc(slices.Clone(v.Finalizers), func(f string) bool { return f == localvolume.Finalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": v.UID, "resourceVersion": v.ResourceVersion, "finalizers": rest}})
	if err != nil {
		return err
	}
	_, err = l.client.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/kubelet/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
	"keelson/lib/signal"
)

// podSync keeps the table of workers equal to the pods that the API, static pod files and the runtime have.
type podSync struct {
	*Kubelet

	env        *pod.Env      // of the workers
	staticGone signal.Signal // nothing is left of a static pod: its file may be a new one
}

// update passes a pod to its worker, and begins one for a new pod.
func (k *podSync) update(ctx context.Context, p *corev1.Pod) {
	begun := k.workers.update(ctx, k.env, p, func() {
		k.admission.forget(string(p.UID))
		if podinfo.Static(p) {
			k.staticGone.Notify()
		}
	})
	if begun {
		k.eviction.Wake()
	}
}

// watch updates the workers from static pod files and the API until ctx is done.
func (k *podSync) watch(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	f := k.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", k.cfg.NodeName).String()
	}})
	inf := coreinformers.New(f.Scoped()).Pods().Informer()
	wg.Go(func() { inf.RunWithContext(ctx) })
	if !k.services.waitForSync(ctx) || !cache.WaitFor(ctx, "", inf.HasSyncedChecker()) {
		return errors.New("kubelet: stopped before the pods were known")
	}
	statics, err := k.staticPods(ctx, &wg)
	if err != nil {
		return err
	}
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.handlePod(ctx, o) },
		UpdateFunc: func(_, o any) { k.handlePod(ctx, o) },
		DeleteFunc: func(o any) { k.handleDeletedPod(o) },
	})
	if err != nil {
		return fmt.Errorf("kubelet: watch pods: %w", err)
	}
	if cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		k.workers.setComplete()
		k.stopOrphans(ctx)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-statics:
		return err
	}
}

func (k *podSync) handlePod(ctx context.Context, o any) {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName != k.cfg.NodeName {
		return
	}
	if !podinfo.Mirror(p) {
		k.update(ctx, p)
		return
	}
	if w := k.workers.findStatic(p); w != nil {
		w.Update(p)
		k.workers.touch()
		return
	}
	k.dropMirror(ctx, p)
}

// dropMirror deletes the mirror pod of a static pod that has no file.
func (k *podSync) dropMirror(ctx context.Context, p *corev1.Pod) {
	zero := int64(0)
	err := k.cfg.Client.PodWrites(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &p.UID},
	})
	if err != nil && ctx.Err() == nil {
		k.cfg.Log.Warn("delete orphaned mirror pod", "pod", podinfo.FullName(p), "err", err)
	}
}

func (k *podSync) handleDeletedPod(o any) {
	p, ok := client.Delivered[*corev1.Pod](o)
	if !ok {
		return
	}
	if w := k.workers.of(p); w != nil {
		w.Deleted(p)
		k.workers.touch()
	}
}

// stopOrphans stops pods of an earlier kubelet process that exist only in the runtime or on the disk.
func (k *podSync) stopOrphans(ctx context.Context) {
	known, err := runtimestate.ListPods(ctx, k.cfg.Runtime.Runtime)
	if err != nil {
		if ctx.Err() == nil {
			k.cfg.Log.Warn("look for orphaned pods", "err", err)
		}
		return
	}
	dirs, err := k.volumes.Pods()
	if err != nil {
		k.cfg.Log.Warn("look for orphaned pods", "err", err)
	}
	for _, uid := range slices.Concat(dirs, k.plugins.claims.Pods(), k.plugins.devices.Pods()) {
		if known[uid] == nil {
			known[uid] = &runtimestate.Pod{UID: uid}
		}
	}
	k.starts.KeepPods(func(uid string) bool { return k.workers.find(uid) != nil })
	k.removeOrphanLogs(known)
	for uid, o := range known {
		if k.workers.find(uid) != nil {
			continue
		}
		p := k.orphanedPod(ctx, uid, o)
		k.update(ctx, p)
		if w := k.workers.find(uid); w != nil {
			w.Notify(pod.Gone)
		}
	}
}

// removeOrphanLogs removes the log directories of pods of which nothing else is left: a kubelet was killed during the
// last step of their termination. The name of a pod without a sandbox is taken from its log directory.
func (k *podSync) removeOrphanLogs(known map[string]*runtimestate.Pod) {
	dirs, err := os.ReadDir(k.cfg.LogDir)
	if err != nil {
		k.cfg.Log.Warn("look for logs of orphaned pods", "err", err)
		return
	}
	for _, entry := range dirs {
		part := strings.Split(entry.Name(), "_") // as translate.PodLogDir puts them together
		if len(part) != 3 || !entry.IsDir() || k.workers.find(part[2]) != nil {
			continue
		}
		if o := known[part[2]]; o != nil {
			if o.Name == "" {
				o.Namespace = part[0]
				o.Name = part[1]
			}
			continue // its worker removes them
		}
		if err := os.RemoveAll(filepath.Join(k.cfg.LogDir, entry.Name())); err != nil {
			k.cfg.Log.Warn("remove logs of orphaned pod", "dir", entry.Name(), "err", err)
		}
	}
}

// orphanedPod returns a Pod object for an orphaned pod.
func (k *podSync) orphanedPod(ctx context.Context, uid string, o *runtimestate.Pod) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: o.Namespace, Name: o.Name}}
	p.Spec.NodeName = k.cfg.NodeName
	seen, err := runtimestate.Read(ctx, k.cfg.Runtime.Runtime, uid)
	if err != nil {
		return p
	}
	for i := range seen.Containers {
		if g, err := strconv.ParseInt(seen.Containers[i].Annotations[runtimestate.AnnotationGracePeriod], 10,
			64); err == nil {
			p.Spec.TerminationGracePeriodSeconds = &g
		}
	}
	return p
}

// readPods gives the workers what the server has of their pods: others have marked the pods of a silent node not ready,
// and the watch comes back late. Pods that come and go are left to the watch.
func readPods(ctx context.Context, cfg *Config, workers *workers) {
	ctx, cancel := context.WithTimeout(ctx, readPodsLimit)
	defer cancel()
	pods, err := cfg.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", cfg.NodeName).String(),
	})
	if err != nil {
		cfg.Log.Warn("read the node's pods again", "err", err)
		return // the watch brings them
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if w := workers.of(p); w != nil {
			w.Update(p)
		}
	}
}

// readPodsLimit is how long the list of a node's pods may take.
const readPodsLimit = 10 * time.Second

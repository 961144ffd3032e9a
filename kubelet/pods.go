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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/kubelet/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
)

// worker is the worker of a pod, nil when there is none.
func (k *Kubelet) worker(uid string) *pod.Worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.workers[uid]; e != nil {
		return e.worker
	}
	return nil
}

func (k *Kubelet) allWorkers() []*pod.Worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]*pod.Worker, 0, len(k.workers))
	for _, e := range k.workers {
		out = append(out, e.worker)
	}
	return out
}

// updateWorker passes a pod to its worker, and makes a worker for a new pod.
func (k *Kubelet) updateWorker(ctx context.Context, p *corev1.Pod) {
	uid := string(p.UID)
	k.mu.Lock()
	if k.stopping {
		k.mu.Unlock()
		return
	}
	if e := k.workers[uid]; e != nil {
		k.mu.Unlock()
		e.worker.Update(p)
		return
	}
	e := &workerEntry{worker: pod.New(k.env, p, time.Now()), static: podinfo.Static(p)}
	k.workers[uid] = e
	if e.static {
		k.staticByName[p.Namespace+"/"+p.Name] = uid
	}
	k.wg.Add(1)
	k.mu.Unlock()
	k.eviction.Wake()
	go func() { // ends with ctx, or when nothing is left of the pod
		defer k.wg.Done()
		if e.worker.Run(ctx) {
			k.removeWorker(uid, p)
		}
	}()
}

func (k *Kubelet) removeWorker(uid string, p *corev1.Pod) {
	k.mu.Lock()
	delete(k.workers, uid)
	delete(k.admitted, uid)
	name := p.Namespace + "/" + p.Name
	static := k.staticByName[name] == uid
	if static {
		delete(k.staticByName, name)
	}
	k.mu.Unlock()
	if static {
		k.staticGone.Notify()
	}
}

// watchPods updates the workers from static pod files and the API until ctx is done.
func (k *Kubelet) watchPods(ctx context.Context) error {
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
		k.stopOrphans(ctx)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-statics:
		return err
	}
}

// readPods gives the workers what the server has of their pods: others have marked the pods of a silent node not ready,
// and the watch comes back late. Pods that come and go are left to the watch.
func (k *Kubelet) readPods(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readPodsLimit)
	defer cancel()
	pods, err := k.cfg.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", k.cfg.NodeName).String(),
	})
	if err != nil {
		k.cfg.Log.Warn("read the node's pods again", "err", err)
		return // the watch brings them
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if w := k.workerOf(p); w != nil {
			w.Update(p)
		}
	}
}

// readPodsLimit is how long the list of a node's pods may take.
const readPodsLimit = 10 * time.Second

func (k *Kubelet) handlePod(ctx context.Context, o any) {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName != k.cfg.NodeName {
		return
	}
	if !podinfo.Mirror(p) {
		k.updateWorker(ctx, p)
		return
	}
	if w := k.staticWorker(p); w != nil {
		w.Update(p)
		return
	}
	k.dropMirror(ctx, p)
}

// workerOf returns the worker that looks after an object of the API, for a mirror pod that of its static pod; nil:
// there is none.
func (k *Kubelet) workerOf(p *corev1.Pod) *pod.Worker {
	if podinfo.Mirror(p) {
		return k.staticWorker(p)
	}
	return k.worker(string(p.UID))
}

func (k *Kubelet) staticWorker(p *corev1.Pod) *pod.Worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.workers[k.staticByName[p.Namespace+"/"+p.Name]]; e != nil {
		return e.worker
	}
	return nil
}

// dropMirror deletes the mirror pod of a static pod that has no file.
func (k *Kubelet) dropMirror(ctx context.Context, p *corev1.Pod) {
	zero := int64(0)
	err := k.cfg.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &p.UID},
	})
	if err != nil && ctx.Err() == nil {
		k.cfg.Log.Warn("delete orphaned mirror pod", "pod", podinfo.FullName(p), "err", err)
	}
}

func (k *Kubelet) handleDeletedPod(o any) {
	p, ok := client.Delivered[*corev1.Pod](o)
	if !ok {
		return
	}
	if w := k.workerOf(p); w != nil {
		w.Deleted(p)
	}
}

// stopOrphans stops pods of an earlier kubelet process that exist only in the runtime or on the disk.
func (k *Kubelet) stopOrphans(ctx context.Context) {
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
	for _, uid := range slices.Concat(dirs, k.devices.Pods(), k.devicePlugins.Pods()) {
		if known[uid] == nil {
			known[uid] = &runtimestate.Pod{UID: uid}
		}
	}
	k.starts.KeepPods(func(uid string) bool { return k.worker(uid) != nil })
	k.removeOrphanLogs(known)
	for uid, o := range known {
		if k.worker(uid) != nil {
			continue
		}
		p := k.orphanedPod(ctx, uid, o)
		k.updateWorker(ctx, p)
		if w := k.worker(uid); w != nil {
			w.Notify(pod.Gone)
		}
	}
}

// removeOrphanLogs removes the log directories of pods of which nothing else is left: a kubelet was killed during the
// last step of their termination. The name of a pod without a sandbox is taken from its log directory.
func (k *Kubelet) removeOrphanLogs(known map[string]*runtimestate.Pod) {
	dirs, err := os.ReadDir(k.cfg.LogDir)
	if err != nil {
		k.cfg.Log.Warn("look for logs of orphaned pods", "err", err)
		return
	}
	for _, entry := range dirs {
		part := strings.Split(entry.Name(), "_") // as translate.PodLogDir puts them together
		if len(part) != 3 || !entry.IsDir() || k.worker(part[2]) != nil {
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
func (k *Kubelet) orphanedPod(ctx context.Context, uid string, o *runtimestate.Pod) *corev1.Pod {
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

// services has the cluster's Services, for the environment of containers.
type services struct {
	client kubernetes.Interface
	once   sync.Once
	inf    cache.SharedIndexInformer
}

func (s *services) informer() cache.SharedIndexInformer {
	s.once.Do(func() {
		s.inf = coreinformers.NewServiceInformer(s.client, metav1.NamespaceAll, 0, cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		})
	})
	return s.inf
}

func (s *services) run(ctx context.Context) { s.informer().RunWithContext(ctx) }

func (s *services) waitForSync(ctx context.Context) bool {
	return cache.WaitFor(ctx, "", s.informer().HasSyncedChecker())
}

func (s *services) inNamespace(namespace string) []*corev1.Service {
	l := listers.NewServiceLister(s.informer().GetIndexer())
	out, err := l.Services(namespace).List(labels.Everything())
	if err != nil {
		return nil // an indexer's list does not fail
	}
	if namespace != metav1.NamespaceDefault {
		if api, err := l.Services(metav1.NamespaceDefault).Get("kubernetes"); err == nil {
			out = append(out, api)
		}
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

// Package refs caches the API objects to which pods of this node refer: config maps, secrets, trust bundles and
// certificate requests. It watches each object while a pod uses it, so that a change wakes the pod's worker at once.
// The pod workers call Use; volumes and environments read objects through the Store. It never lists all objects of a
// kind, and modifies none.
package refs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	authv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/kubelet/podinfo"
	"keelson/lib/signal"
)

// Kinds of objects that pods refer to.
const (
	ConfigMap = "configmap"
	Secret    = "secret"
)

// Ref names one object.
type Ref struct{ Kind, Namespace, Name string }

// set collects the references of one pod.
type set struct {
	namespace string
	refs      map[Ref]bool
}

func (s set) add(kind, name string) {
	if name != "" {
		s.refs[Ref{kind, s.namespace, name}] = true
	}
}

// Bounds of what is watched: each watch takes some 120 kB of memory, and a pod's specification has room for 30,000
// names.
const (
	// maxOfPod is how many objects a pod may refer to. A pod with more does not start.
	maxOfPod = 256
	// maxOfNamespace is how many objects of one namespace are watched. More are read when they are used, and their
	// changes are noticed late.
	maxOfNamespace = 512
)

// Of returns the references in a pod's volumes and environments. More than maxOfPod are an error.
func Of(p *corev1.Pod) ([]Ref, error) {
	s := set{p.Namespace, map[Ref]bool{}}
	for i := range p.Spec.Volumes {
		s.volume(p, &p.Spec.Volumes[i])
	}
	for c := range podinfo.All(p) {
		s.env(c)
	}
	if len(s.refs) > maxOfPod {
		return nil, fmt.Errorf("the pod refers to %d ConfigMaps, Secrets and trust bundles, which is more than %d; "+
			"merge some of them",
			len(s.refs), maxOfPod)
	}
	return slices.Collect(maps.Keys(s.refs)), nil
}

func (s set) volume(p *corev1.Pod, v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		s.add(ConfigMap, v.ConfigMap.Name)
	case v.Secret != nil:
		s.add(Secret, v.Secret.SecretName)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			src := &v.Projected.Sources[i]
			s.trust(p, src)
			if src.ConfigMap != nil {
				s.add(ConfigMap, src.ConfigMap.Name)
			}
			if src.Secret != nil {
				s.add(Secret, src.Secret.Name)
			}
		}
	}
}

func (s set) env(c *corev1.Container) {
	for _, f := range c.EnvFrom {
		if f.ConfigMapRef != nil {
			s.add(ConfigMap, f.ConfigMapRef.Name)
		}
		if f.SecretRef != nil {
			s.add(Secret, f.SecretRef.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			s.add(ConfigMap, r.Name)
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			s.add(Secret, r.Name)
		}
	}
}

type item struct {
	users  map[string]bool // pods by uid
	store  cache.SharedIndexInformer
	cancel context.CancelFunc
}

// Store has the watches of all objects in use.
type Store struct {
	client kubernetes.Interface
	wake   func(uid string)
	log    *slog.Logger
	start  signal.Signal

	mu      sync.Mutex
	items   map[Ref]*item
	watched map[string]int // number of items by namespace
	pods    map[string]map[Ref]bool
}

// New returns a store. It calls wake with a pod's UID when an object of the pod has changed. Watches start with Run.
func New(c kubernetes.Interface, wake func(uid string), log *slog.Logger) *Store {
	return &Store{
		client:  c,
		wake:    wake,
		log:     log,
		start:   signal.New(),
		items:   map[Ref]*item{},
		watched: map[string]int{},
		pods:    map[string]map[Ref]bool{},
	}
}

// Run watches the objects until ctx is done.
func (s *Store) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		s.startWatches(ctx, &wg)
		select {
		case <-ctx.Done():
			return
		case <-s.start.C():
		}
	}
}

// startWatches starts the missing watches. A watch ends when Use removes its last pod, or with ctx.
func (s *Store) startWatches(ctx context.Context, wg *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, it := range s.items {
		if it.store != nil || ctx.Err() != nil {
			continue
		}
		wctx, cancel := context.WithCancel(ctx)
		inf := s.informer(ref)
		it.store = inf
		it.cancel = cancel
		wg.Go(func() { inf.RunWithContext(wctx) })
	}
}

// Use sets the references of a pod; none when it does not need them any more. A watch ends with its last pod, so each
// caller must call Use without references at the end.
func (s *Store) Use(uid string, refs []Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[Ref]bool{}
	for _, r := range refs {
		it := s.items[r]
		if it == nil && s.watched[r.Namespace] >= maxOfNamespace {
			continue
		}
		now[r] = true
		if it == nil {
			it = &item{users: map[string]bool{}}
			s.items[r] = it
			s.watched[r.Namespace]++
			s.start.Notify()
		}
		it.users[uid] = true
	}
	for r := range s.pods[uid] {
		if now[r] {
			continue
		}
		it := s.items[r]
		delete(it.users, uid)
		if len(it.users) == 0 {
			delete(s.items, r)
			if s.watched[r.Namespace]--; s.watched[r.Namespace] == 0 {
				delete(s.watched, r.Namespace)
			}
			if it.cancel != nil {
				it.cancel()
			}
		}
	}
	s.pods[uid] = now
	if len(now) == 0 {
		delete(s.pods, uid)
	}
}

func (s *Store) changed(r Ref) {
	s.mu.Lock()
	var uids []string
	if it := s.items[r]; it != nil {
		for uid := range it.users {
			uids = append(uids, uid)
		}
	}
	s.mu.Unlock()
	for _, uid := range uids {
		s.wake(uid)
	}
}

// listWatch lists and watches the objects that sel selects.
func listWatch[L runtime.Object](
	sel fields.Selector, list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel.String()
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel.String()
			return follow(ctx, o)
		},
	}
}

// source returns the list-watch and the type of a reference's objects.
func (s *Store) source(ref Ref) (*cache.ListWatch, runtime.Object) {
	sel := selectorOf(ref)
	switch ref.Kind {
	case ConfigMap:
		c := s.client.CoreV1().ConfigMaps(ref.Namespace)
		return listWatch(sel, c.List, c.Watch), &corev1.ConfigMap{}
	case Bundle, Signer:
		c := s.client.CertificatesV1().ClusterTrustBundles()
		return listWatch(sel, c.List, c.Watch), &certificatesv1.ClusterTrustBundle{}
	case Requests:
		c := s.client.CertificatesV1().PodCertificateRequests(metav1.NamespaceAll)
		return listWatch(sel, c.List, c.Watch), &certificatesv1.PodCertificateRequest{}
	}
	c := s.client.CoreV1().Secrets(ref.Namespace)
	return listWatch(sel, c.List, c.Watch), &corev1.Secret{}
}

func (s *Store) informer(ref Ref) cache.SharedIndexInformer {
	lw, kind := s.source(ref)
	inf := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, s.client), kind, 0,
		cache.Indexers{})
	must := func(err error) {
		if err != nil {
			panic(fmt.Sprintf("set up a new informer: %v", err)) // it fails only for one that runs
		}
	}
	must(inf.SetWatchErrorHandlerWithContext(s.watchFailed))
	named := func(o any) bool {
		m, ok := client.Delivered[metav1.Object](o)
		return ok && (!singleObject(ref.Kind) || m.GetName() == ref.Name)
	}
	_, err := inf.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, _ bool) {
			// also for the first event: it may be newer than the object that the pod has read before the watch
			if named(o) {
				s.changed(ref)
			}
		},
		UpdateFunc: func(old, o any) {
			if named(o) && !sameData(old, o) {
				s.changed(ref)
			}
		},
		DeleteFunc: func(o any) {
			if named(o) {
				s.changed(ref)
			}
		},
	})
	must(err)
	return inf
}

// watchFailed logs a failed watch. The informer retries after 0.8 s, later every 30 to 60 s. A Forbidden error is not
// logged: the API server refuses the objects of deleted pods.
func (s *Store) watchFailed(ctx context.Context, r *cache.Reflector, err error) {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || ctx.Err() != nil {
		s.log.Debug("watch refused", "watch", r.TypeDescription(), "err", err)
		return
	}
	cache.DefaultWatchErrorHandler(ctx, r, err)
}

func sameData(a, b any) bool {
	switch a := a.(type) {
	case *corev1.ConfigMap:
		b, ok := b.(*corev1.ConfigMap)
		return ok && equality.Semantic.DeepEqual(a.Data, b.Data) && equality.Semantic.DeepEqual(a.BinaryData,
			b.BinaryData)
	case *corev1.Secret:
		b, ok := b.(*corev1.Secret)
		return ok && equality.Semantic.DeepEqual(a.Data, b.Data)
	case *certificatesv1.ClusterTrustBundle:
		b, ok := b.(*certificatesv1.ClusterTrustBundle)
		return ok && equality.Semantic.DeepEqual(a.Spec, b.Spec) && maps.Equal(a.Labels, b.Labels)
	case *certificatesv1.PodCertificateRequest:
		b, ok := b.(*certificatesv1.PodCertificateRequest)
		return ok && equality.Semantic.DeepEqual(a.Status, b.Status)
	}
	return false
}

// synced returns the informer of a reference; nil: it has not listed yet.
func (s *Store) synced(r Ref) cache.SharedIndexInformer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it := s.items[r]; it != nil && it.store != nil && it.store.HasSynced() {
		return it.store
	}
	return nil
}

// cached returns the object from its watch; ok is false if there is no watch, or it has not listed yet.
func (s *Store) cached(r Ref) (obj any, exists, ok bool) {
	inf := s.synced(r)
	if inf == nil {
		return nil, false, false
	}
	obj, exists, err := inf.GetStore().GetByKey(cache.NewObjectName(r.Namespace, r.Name).String())
	return obj, exists, err == nil
}

// notFound returns the API server's error for a missing object: configmap "x" not found.
func notFound(kind, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
}

// ConfigMap reads a config map. A missing one is an IsNotFound error.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if o, exists, ok := s.cached(Ref{ConfigMap, namespace, name}); ok && exists {
		return o.(*corev1.ConfigMap), nil
	}
	cm, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notFound(ConfigMap, name)
	}
	return cm, err
}

// Secret reads a secret. A missing one is an IsNotFound error.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	if o, exists, ok := s.cached(Ref{Secret, namespace, name}); ok && exists {
		return o.(*corev1.Secret), nil
	}
	sec, err := s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notFound(Secret, name)
	}
	return sec, err
}

// Token requests a token of a service account.
func (s *Store) Token(
	ctx context.Context, namespace, account string, r *authv1.TokenRequest,
) (*authv1.TokenRequest, error) {
	return s.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, r, metav1.CreateOptions{})
}

// Claim returns a claim and its PersistentVolume.
func (s *Store) Claim(
	ctx context.Context, namespace, name string,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	pvc, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	if pvc.Spec.VolumeName == "" || pvc.Status.Phase != corev1.ClaimBound {
		return nil, nil, fmt.Errorf("PVC %s/%s is not bound", namespace, name)
	}
	pv, err := s.client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("failed to fetch PV %s from API server: %w", pvc.Spec.VolumeName, err)
	}
	if r := pv.Spec.ClaimRef; r == nil || r.UID != pvc.UID {
		return nil, nil, fmt.Errorf("PV %s is not bound to PVC %s/%s", pv.Name, namespace, name)
	}
	return pvc, pv, nil
}

// SPDX-License-Identifier: Apache-2.0

// Package history stores the pod templates of StatefulSets and DaemonSets as ControllerRevisions: it claims a
// workload's revisions, finds or creates the one of its current template, numbers them so that a rollback makes the old
// revision the newest, and deletes those beyond revisionHistoryLimit. The controllers of both kinds use it. It never
// touches pods or the workload itself.
package history

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
)

// Owner is a workload with revisions.
type Owner struct {
	metav1.Object
	Selector labels.Selector
	Template *corev1.PodTemplateSpec
	// Collisions is status.collisionCount.
	Collisions *int32
	// HashLabel is the label with a revision's hash.
	HashLabel string
}

// Manager manages the revisions of one kind of workload.
type Manager struct {
	env      *framework.Env
	informer cache.SharedIndexInformer
	own      framework.Ownership[*appsv1.ControllerRevision]
}

// New returns a keeper on the shared informer of ControllerRevisions. live reads a workload of kind owner from the API
// server, not from a cache.
func New(env *framework.Env, owner schema.GroupVersionKind, live func(
	ctx context.Context, namespace, name string,
) (metav1.Object, error),
) (*Manager, error) {
	inf := appsinformers.New(env.Shared.Scoped()).ControllerRevisions().Informer()
	if err := framework.EnsureIndex(inf, framework.ByController, framework.IndexByController); err != nil {
		return nil, err
	}
	return &Manager{env, inf, framework.Ownership[*appsv1.ControllerRevision]{
		Owner: owner,
		Live:  live,
		Patch: func(ctx context.Context, r *appsv1.ControllerRevision, patch []byte) error {
			_, err := env.Client.AppsV1().ControllerRevisions(r.Namespace).Patch(ctx, r.Name,
				types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}}, nil
}

// Informer is the informer of the revisions.
func (k *Manager) Informer() cache.SharedIndexInformer { return k.informer }

// State is a workload's history after Sync.
type State struct {
	// Update is the revision of the current template, the last of All.
	Update *appsv1.ControllerRevision
	// All are the workload's revisions, oldest first. They may be shared: do not modify them.
	All []*appsv1.ControllerRevision
	// Collisions is the new status.collisionCount.
	Collisions int32
}

// Named returns the revision with this name, nil if there is none.
func (s *State) Named(name string) *appsv1.ControllerRevision {
	for _, r := range s.All {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Sync claims owner's revisions and makes the one of its current template the newest, creating it if needed.
func (k *Manager) Sync(ctx context.Context, owner Owner) (*State, error) {
	state := &State{}
	if owner.Collisions != nil {
		state.Collisions = *owner.Collisions
	}
	var err error
	if state.All, err = k.claim(ctx, owner); err != nil {
		return nil, err
	}
	sortByRevision(state.All)
	patch, err := Patch(owner.Template)
	if err != nil {
		return nil, err
	}
	next := int64(1)
	if n := len(state.All); n > 0 {
		next = state.All[n-1].Revision + 1
	}
	at := lastEqual(state.All, patch, owner.Template)
	switch {
	case at < 0:
		if state.Update, err = k.create(ctx, owner, patch, next, &state.Collisions); err != nil {
			return nil, err
		}
		state.All = append(state.All, state.Update)
	case at == len(state.All)-1:
		state.Update = state.All[at]
	default: // a rollback
		r := state.All[at].DeepCopy()
		r.Revision = next
		if state.Update, err = k.env.Client.AppsV1().ControllerRevisions(r.Namespace).Update(ctx, r,
			metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("renumber revision %s: %w", r.Name, err)
		}
		state.All = append(slices.Delete(state.All, at, at+1), state.Update)
	}
	return state, nil
}

// sortByRevision sorts the oldest first.
func sortByRevision(all []*appsv1.ControllerRevision) {
	slices.SortStableFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
}

func lastEqual(all []*appsv1.ControllerRevision, patch []byte, t *corev1.PodTemplateSpec) int {
	for i, r := range slices.Backward(all) {
		if equal(r, patch, t) {
			return i
		}
	}
	return -1
}

// create creates the revision of o's template. A different revision with its name is a collision: the next name is
// tried.
func (k *Manager) create(
	ctx context.Context, o Owner, patch []byte, number int64, collisions *int32,
) (*appsv1.ControllerRevision, error) {
	api := k.env.Client.AppsV1().ControllerRevisions(o.GetNamespace())
	for {
		want := k.revision(o, patch, number, *collisions)
		revision, err := api.Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			return revision, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create revision %s: %w", want.Name, err)
		}
		revision, err = api.Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read revision %s: %w", want.Name, err)
		}
		owner := metav1.GetControllerOfNoCopy(revision)
		adoptable := revision.DeletionTimestamp == nil && o.Selector.Matches(labels.Set(revision.Labels))
		switch {
		case !equal(revision, patch, o.Template) || owner != nil && owner.UID != o.GetUID() ||
			owner == nil && !adoptable:
			*collisions++ // it belongs to another owner
		case owner == nil:
			return nil, fmt.Errorf("revision %s: waiting to adopt it", want.Name)
		case revision.Revision < number: // not in the cache yet: it was created, and others after it
			revision.Revision = number
			return api.Update(ctx, revision, metav1.UpdateOptions{})
		default:
			return revision, nil
		}
	}
}

// revision is the object with owner's template.
func (k *Manager) revision(owner Owner, patch []byte, number int64, collisions int32) *appsv1.ControllerRevision {
	h := fnv.New32()
	_, _ = h.Write(patch) // Write of a hash never fails
	_, _ = h.Write(strconv.AppendInt(nil, int64(collisions), 10))
	hash := rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
	const most = 223 // of the workload's name, as in Kubernetes, so that revisions of another control plane are found
	base := owner.GetName()
	if len(base) > most {
		base = strings.TrimRight(base[:most], ".") // no part of a name begins with a hyphen
	}
	name := base + "-" + hash
	l := maps.Clone(owner.Template.Labels)
	if l == nil {
		l = map[string]string{}
	}
	l[owner.HashLabel] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Namespace:       owner.GetNamespace(),
			Labels:          l,
			Annotations:     maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner.Object, k.own.Owner)},
		},
		Data:     runtime.RawExtension{Raw: patch},
		Revision: number,
	}
}

// Truncate deletes the oldest revisions that are not live until limit of those are left. A negative limit keeps all.
func (k *Manager) Truncate(ctx context.Context, s *State, limit int, live func(*appsv1.ControllerRevision) bool) error {
	if limit < 0 || len(s.All) <= limit {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(s.All), func(r *appsv1.ControllerRevision) bool {
		return r == s.Update || live(r)
	})
	for _, r := range old[:max(0, len(old)-limit)] {
		uid := r.UID
		err := k.env.Client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete revision %s: %w", r.Name, err)
		}
	}
	return nil
}

// claim returns owner's revisions after adoption and release.
func (k *Manager) claim(ctx context.Context, owner Owner) ([]*appsv1.ControllerRevision, error) {
	mine, adopted, err := k.own.ClaimCached(ctx, k.informer.GetIndexer(), owner.Object, owner.Selector, nil)
	if err != nil {
		return nil, fmt.Errorf("revisions: %w", err)
	}
	return append(mine, adopted...), nil
}

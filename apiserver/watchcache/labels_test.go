// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/apiserver/watchcache"
)

// counted is a selector that counts how often it is asked.
type counted struct {
	labels.Selector
	asked *int
}

func (c counted) Matches(set labels.Labels) bool {
	*c.asked++
	return c.Selector.Matches(set)
}

// TestListAsksOncePerLabelSet: a list by label looks at sets of labels, not at each of the objects that have them.
func TestListAsksOncePerLabelSet(t *testing.T) {
	const sets, each = 10, 50
	_, r := start(t, watchcache.Config{Store: objectstest.NewStore(t)})
	for i := range sets * each {
		pod := objectstest.Pod(fmt.Sprintf("ns-%d/pod-%d", i%3, i), fmt.Sprintf("app=app-%d", i%sets), "tier=web")
		if _, _, err := r.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	query := objectstest.Everything()
	query.Labels = counted{labels.SelectorFromSet(labels.Set{"app": "app-7"}), &asked}
	list, err := r.List(t.Context(), query)
	if err != nil || len(list.Items) != each {
		t.Fatalf("%d objects, %v; want %d", len(list.Items), err, each)
	}
	// Once for each set and for none, and once more for each object in the result.
	if most := sets + 1 + each; asked > most {
		t.Errorf("the selector was asked %d times for %d objects with %d sets of labels, want at most %d", asked,
			sets*each, sets, most)
	}
}

// history writes pods at random: few names, labels and nodes, so that all of them change often.
type history struct {
	r    *watchcache.Resource
	rand *rand.Rand
}

func (h *history) labels() []string {
	var out []string
	for _, name := range []string{"app", "tier", "own"} {
		if n := h.rand.IntN(4); n > 0 {
			out = append(out, fmt.Sprintf("%s=%d", name, n))
		}
	}
	return out
}

// write makes one change; that an object is there already, or is missing, is part of the history.
func (h *history) write(ctx context.Context) {
	namespace := fmt.Sprintf("ns-%d", h.rand.IntN(2))
	name := fmt.Sprintf("pod-%02d", h.rand.IntN(30))
	pod := objectstest.Pod(namespace+"/"+name, h.labels()...)
	pod.Spec.NodeName = fmt.Sprintf("node-%d", h.rand.IntN(3))
	switch h.rand.IntN(4) {
	case 0:
		_, _, _ = h.r.Delete(ctx, namespace, name, nil)
	case 1:
		_, _, _ = h.r.Create(ctx, pod)
	default:
		_, _, _, _ = h.r.Update(ctx, namespace, name, true, objects.Replace(func(
			_ context.Context, current kind.Object,
		) (kind.Object, error) {
			if current == nil {
				return pod, nil
			}
			next, _ := current.DeepCopyObject().(*corev1.Pod)
			next.Spec.NodeName = pod.Spec.NodeName
			if h.rand.IntN(2) == 0 { // else the labels stay
				next.Labels = pod.Labels
			}
			return next, nil
		}))
	}
}

func (h *history) query(t *testing.T) objects.ListQuery {
	t.Helper()
	pick := func(texts ...string) string { return texts[h.rand.IntN(len(texts))] }
	q := objectstest.Everything()
	var err error
	if q.Labels, err = labels.Parse(pick("", "app=1", "app=2,tier=1", "app in (1,3)", "app notin (1)", "!app", "own",
		"tier!=2,app", "app=none")); err != nil {
		t.Fatal(err)
	}
	q.Fields = fields.ParseSelectorOrDie(pick("", "", "spec.nodeName=node-1", "spec.nodeName=node-9",
		"spec.nodeName!=node-1", "metadata.name=pod-07"))
	q.Namespace = pick("", "", "ns-0")
	q.Limit = int64(h.rand.IntN(4) * 3)
	return q
}

// TestListIsWhatTheStoreHas: at each revision, the pages of every list from the cache are those of a scan of the store,
// and a watch begins with the same objects, while others write.
func TestListIsWhatTheStoreHas(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	st := objectstest.NewStore(t)
	_, r := start(t, watchcache.Config{Store: st})
	scan := objects.New(objectstest.Pods(), st)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer func() {
		cancel()
		writers.Wait()
	}()
	for i := range uint64(2) {
		writers.Go(func() {
			for h := (&history{r, rand.New(rand.NewPCG(seed, i))}); ctx.Err() == nil; {
				h.write(ctx)
			}
		})
	}
	for h, round := (&history{r, rand.New(rand.NewPCG(seed, 9))}), 0; round < 300; round++ {
		for range 3 {
			h.write(ctx)
		}
		q := h.query(t)
		text := fmt.Sprintf("list of %q, labels %q, fields %q, limit %d", q.Namespace, q.Labels, q.Fields, q.Limit)
		for page := 1; ; page++ {
			got, err := r.List(ctx, q)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			exact := q
			if exact.Continue == "" {
				exact.ResourceVersion = objects.FormatRevision(got.Revision)
				exact.Match = "Exact"
			}
			want, err := scan.List(ctx, exact)
			if err != nil {
				t.Fatalf("%s from the store: %v", text, err)
			}
			if g, w := versions(got), versions(want); g != w || got.Continue != want.Continue {
				t.Fatalf("%s, page %d at %d:\n got %s\nwant %s", text, page, got.Revision, g, w)
			}
			if q.Continue = got.Continue; got.Continue == "" {
				break
			}
		}
		compareWatch(ctx, t, r, scan, q)
	}
}

// versions are the objects of a list, in order.
func versions(list *objects.List) string {
	var out []string
	for _, e := range list.Items {
		out = append(out, fmt.Sprintf("%s@%d", e.Key, e.Revision))
	}
	return strings.Join(out, " ")
}

// compareWatch compares the objects with which a watch begins with a list of the store.
func compareWatch(
	ctx context.Context, t *testing.T, r *watchcache.Resource, scan *objects.Records, q objects.ListQuery,
) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q.Limit = 0
	q.Continue = ""
	q.SendInitialEvents = new(true)
	q.Bookmarks = true
	q.Match = "NotOlderThan"
	w, err := r.Watch(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	began := &objects.List{}
	for ev := range w.Events() {
		if ev.Type == watch.Bookmark {
			began.Revision = ev.Entry.Revision
			break
		}
		began.Items = append(began.Items, ev.Entry)
	}
	q.SendInitialEvents = nil
	q.Bookmarks = false
	q.ResourceVersion = objects.FormatRevision(began.Revision)
	q.Match = "Exact"
	want, err := scan.List(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(began.Items, func(a, b *objects.Entry) int { return strings.Compare(a.Key, b.Key) }) ||
		versions(began) != versions(want) {
		t.Errorf("a watch with labels %q, fields %q began at %d with\n %s\nwant %s", q.Labels, q.Fields, began.Revision,
			versions(began), versions(want))
	}
}

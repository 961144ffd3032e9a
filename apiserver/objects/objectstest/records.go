// SPDX-License-Identifier: Apache-2.0

package objectstest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/store"
)

// RunRecords runs the suite of reads and writes. open gets a new store. Each test has its own synctest bubble.
func RunRecords(t *testing.T, open func(t *testing.T, c objects.Config, s store.Store) Records) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, s Records, st store.Store)
	}{
		{"CreateGet", testCreateGet},
		{"StoredForm", testStoredForm},
		{"CreateRefused", testCreateRefused},
		{"TooLarge", testTooLarge},
		{"Update", testUpdate},
		{"UpdateUnchanged", testUpdateUnchanged},
		{"UpdateConflict", testUpdateConflict},
		{"UpdateCreates", testUpdateCreates},
		{"UpdateRace", testUpdateRace},
		{"Delete", testDelete},
		{"DeleteUnread", testDeleteCorrupt},
		{"Get", testGet},
		{"ListSelectors", testListSelectors},
		{"ListPages", testListPages},
		{"ListVersions", testListVersions},
		{"ListExpired", testListExpired},
		{"ListRefused", testListRefused},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := NewStore(t)
				tc.run(t, open(t, Pods(), st), st)
			})
		})
	}
}

func testCreateGet(t *testing.T, records Records, st store.Store) {
	obj := Pod("ns/a", "app=x")
	obj.APIVersion = "v1"
	obj.Kind = "Pod"
	precise := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC))
	obj.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager:    "m",
		Operation:  metav1.ManagedFieldsOperationUpdate,
		APIVersion: "v1",
		Time:       &precise,
	}}
	entry, r, err := records.Create(bounded(t), obj)
	if err != nil {
		t.Fatal(err)
	}
	rev, err := st.Revision(bounded(t))
	if err != nil || r.Revision != rev || entry.Revision != rev || rv(entry) != objects.FormatRevision(rev) {
		t.Errorf("create: got receipt %+v, entry %d, resourceVersion %s; store is at %d, %v", r, entry.Revision,
			rv(entry),
			rev, err)
	}
	want(t, "key", r.Key, "/registry/pods/ns/a")
	got, err := records.Get(bounded(t), "ns", "a", "")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "resourceVersion", rv(got), rv(entry))
	want(t, "label", got.Object.GetLabels()["app"], "x")
	if got.Object.GetObjectKind().GroupVersionKind().Kind != "" {
		t.Error("the object carries a TypeMeta")
	}
	if n := got.Object.GetCreationTimestamp().Nanosecond(); n != 0 {
		t.Errorf("creationTimestamp has %d ns, want whole seconds as on the wire", n)
	}
	// An object sent back by a client must be equal to the stored one.
	if n := entry.Object.GetManagedFields()[0].Time.Nanosecond(); n != 0 {
		t.Errorf("the time in managedFields has %d ns, want whole seconds as on the wire", n)
	}
}

func testStoredForm(t *testing.T, s Records, st store.Store) {
	entry := create(t, s, Pod("ns/a"))
	change(t, s, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	kv, _, err := st.Get(bounded(t), "/registry/pods/ns/a", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(kv.Value, []byte("k8s\x00\n\t\n\x02v1\x12\x03Pod\x12")) {
		t.Errorf("stored value begins with %q, want the protobuf envelope of a v1 Pod",
			kv.Value[:min(len(kv.Value), 24)])
	}
	obj, err := objects.Protobuf(Pods().GVK, Pods().New, nil).Decode(kv.Value)
	if err != nil {
		t.Fatal(err)
	}
	if obj.GetResourceVersion() != "" {
		t.Errorf("resourceVersion %s is stored inside (created at %s)", obj.GetResourceVersion(), rv(entry))
	}
}

func testCreateRefused(t *testing.T, records Records, _ store.Store) {
	create(t, records, Pod("ns/a"))
	_, _, err := records.Create(bounded(t), Pod("ns/a"))
	reason(t, "create twice", err, metav1.StatusReasonAlreadyExists)
	if err != nil {
		want(t, "message", err.Error(), `pods "a" already exists`)
	}
	p := Pod("ns/b")
	p.ResourceVersion = "1"
	if _, _, err = records.Create(bounded(t), p); !errors.Is(err, objects.ErrVersionOnCreate) {
		t.Errorf("create with resourceVersion: got %v", err)
	}
	for _, key := range []string{"/a", "ns/", "ns/..", "a/b/c"} {
		_, _, err := records.Create(bounded(t), Pod(key))
		reason(t, "create "+key, err, metav1.StatusReasonBadRequest)
	}
}

// testTooLarge: objects have a size limit, but a larger one, stored by an earlier version, can be deleted.
func testTooLarge(t *testing.T, records Records, _ store.Store) {
	sized := func(n int) map[string]string { return map[string]string{"data": strings.Repeat("x", n)} }
	grow := func(n int, deleted bool) error {
		_, _, _, err := records.Update(bounded(t), "ns", "a", false, objects.Replace(func(
			_ context.Context, cur kind.Object,
		) (kind.Object, error) {
			p := cur.DeepCopyObject().(*corev1.Pod)
			p.Annotations = sized(n)
			if deleted {
				now := metav1.Now()
				p.DeletionTimestamp = &now
			}
			return p, nil
		}))
		return err
	}
	p := Pod("ns/a")
	p.Annotations = sized(2 << 20)
	_, _, err := records.Create(bounded(t), p)
	reason(t, "create a large object", err, metav1.StatusReasonRequestEntityTooLarge)
	if !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("create a large object: %v is not store.ErrTooLarge", err)
	}
	create(t, records, Pod("ns/a"))
	reason(t, "grow beyond the bound", grow(2<<20, false), metav1.StatusReasonRequestEntityTooLarge)
	if err := grow(3<<20, true); err != nil {
		t.Errorf("mark a large object as deleted: %v", err)
	}
	reason(t, "grow a deleted object", grow(5<<20, true), metav1.StatusReasonRequestEntityTooLarge)
	remove(t, records, "ns/a")
}

func testUpdate(t *testing.T, records Records, _ store.Store) {
	first := create(t, records, Pod("ns/a"))
	second := change(t, records, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	if second.Revision <= first.Revision || rv(second) != objects.FormatRevision(second.Revision) {
		t.Errorf("update: revision went from %d to %d (%s)", first.Revision, second.Revision, rv(second))
	}
	want(t, "the first entry's resourceVersion", rv(first), objects.FormatRevision(first.Revision))
	want(t, "the first entry's node", nodeOf(first.Object), "")
	got, err := records.Get(bounded(t), "ns", "a", "")
	if err != nil || nodeOf(got.Object) != "n1" || rv(got) != rv(second) {
		t.Errorf("get: got %+v, %v", got, err)
	}
	_, _, _, err = records.Update(bounded(t), "ns", "none", false, nil)
	reason(t, "update of a missing pod", err, metav1.StatusReasonNotFound)
	no := errors.New("no")
	_, _, _, err = records.Update(bounded(t), "ns", "a", false, objects.Replace(func(
		context.Context, kind.Object,
	) (kind.Object, error) {
		return nil, no
	}))
	if !errors.Is(err, no) {
		t.Errorf("update whose function fails: got %v", err)
	}
}

func testUpdateUnchanged(t *testing.T, s Records, st store.Store) {
	entry := create(t, s, Pod("ns/a", "app=x"))
	for what, f := range map[string]func(context.Context, kind.Object) (kind.Object, error){
		"same object": func(_ context.Context, cur kind.Object) (kind.Object, error) { return cur, nil },
		"equal copy": func(_ context.Context, cur kind.Object) (kind.Object, error) {
			return cur.DeepCopyObject().(kind.Object), nil
		},
	} {
		got, created, r, err := s.Update(bounded(t), "ns", "a", false, objects.Replace(f))
		if err != nil || created || r.Revision != 0 || rv(got) != rv(entry) {
			t.Errorf("%s: got %s, created %v, receipt %+v, %v; want %s and no write", what, rv(got), created, r, err,
				rv(entry))
		}
	}
	if rev, err := st.Revision(bounded(t)); err != nil || rev != entry.Revision {
		t.Errorf("store is at %d, %v; want %d", rev, err, entry.Revision)
	}
}

func testUpdateConflict(t *testing.T, records Records, _ store.Store) {
	old := create(t, records, Pod("ns/a"))
	change(t, records, "ns/a", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	stale := old.Object.DeepCopyObject().(*corev1.Pod)
	stale.Spec.NodeName = "n2"
	_, _, _, err := records.Update(bounded(t), "ns", "a", false, objects.Replace(func(
		context.Context, kind.Object,
	) (kind.Object, error) {
		return stale, nil
	}))
	reason(t, "stale update", err, metav1.StatusReasonConflict)
	if err != nil {
		want(t, "message", err.Error(), `Operation cannot be fulfilled on pods "a": `+
			"the object has been modified; please apply your changes to the latest version and try again")
	}
	stale = stale.DeepCopy()
	stale.ResourceVersion = ""
	e, _, _, err := records.Update(bounded(t), "ns", "a", false, objects.Replace(func(
		context.Context, kind.Object,
	) (kind.Object, error) {
		return stale, nil
	}))
	if err != nil || nodeOf(e.Object) != "n2" {
		t.Errorf("unconditional update: got %+v, %v", e, err)
	}
}

func testUpdateCreates(t *testing.T, records Records, _ store.Store) {
	f := func(_ context.Context, cur kind.Object, write func(kind.Object) error) error {
		if cur != nil {
			return nil // nothing is written, and nothing changes
		}
		return write(Pod("ns/a"))
	}
	e, created, r, err := records.Update(bounded(t), "ns", "a", true, f)
	if err != nil || !created || r.Revision == 0 || rv(e) == "" {
		t.Errorf("first: got %+v, created %v, receipt %+v, %v", e, created, r, err)
	}
	_, created, r, err = records.Update(bounded(t), "ns", "a", true, f)
	if err != nil || created || r.Revision != 0 {
		t.Errorf("second: created %v, receipt %+v, %v", created, r, err)
	}
}

// testUpdateRace adds labels concurrently: none may be lost.
func testUpdateRace(t *testing.T, records Records, _ store.Store) {
	create(t, records, Pod("ns/a"))
	var wg sync.WaitGroup
	const n = 24
	for i := range n {
		wg.Go(func() {
			_, _, _, err := records.Update(bounded(t), "ns", "a", false, objects.Replace(func(
				_ context.Context, cur kind.Object,
			) (kind.Object, error) {
				p := cur.DeepCopyObject().(*corev1.Pod)
				metav1.SetMetaDataLabel(&p.ObjectMeta, numbered("l", i), "x")
				return p, nil
			}))
			if err != nil {
				t.Errorf("update %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	e, err := records.Get(bounded(t), "ns", "a", "")
	if err != nil || len(e.Object.GetLabels()) != n {
		t.Errorf("got %d labels, %v; want %d", len(e.Object.GetLabels()), err, n)
	}
}

func testDelete(t *testing.T, records Records, _ store.Store) {
	created := create(t, records, Pod("ns/a", "app=x"))
	no := apierrors.NewConflict(Pods().Resource, "a", errors.New("precondition"))
	_, _, err := records.Delete(bounded(t), "ns", "a", func(kind.Object) error { return no })
	if !errors.Is(err, no) {
		t.Errorf("refused delete: got %v", err)
	}
	e, r, err := records.Delete(bounded(t), "ns", "a", func(obj kind.Object) error {
		want(t, "checked object", rv(&objects.Entry{Object: obj}), rv(created))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Revision <= created.Revision || rv(e) != objects.FormatRevision(r.Revision) ||
		e.Object.GetLabels()["app"] != "x" {
		t.Errorf("delete: got %s with labels %v, receipt %+v", rv(e), e.Object.GetLabels(), r)
	}
	want(t, "the created entry's resourceVersion", rv(created), objects.FormatRevision(created.Revision))
	_, err = records.Get(bounded(t), "ns", "a", "")
	reason(t, "get of a deleted pod", err, metav1.StatusReasonNotFound)
	if err != nil {
		want(t, "message", err.Error(), `pods "a" not found`)
	}
	_, _, err = records.Delete(bounded(t), "ns", "a", nil)
	reason(t, "delete twice", err, metav1.StatusReasonNotFound)
}

func testGet(t *testing.T, s Records, _ store.Store) {
	e := create(t, s, Pod("ns/a"))
	for _, version := range []string{"", "0", rv(e), "1"} {
		if got, err := s.Get(bounded(t), "ns", "a", version); err != nil || rv(got) != rv(e) {
			t.Errorf("get at %q: got %v, %v", version, got, err)
		}
	}
	_, err := s.Get(bounded(t), "ns", "a", "x")
	reason(t, "get at x", err, metav1.StatusReasonUnknown) // a 500, as in Kubernetes
	_, err = s.Get(bounded(t), "ns", "a", "999999")
	reason(t, "get in the future", err, metav1.StatusReasonTimeout)
}

func testListSelectors(t *testing.T, records Records, st store.Store) {
	for _, key := range []string{"a/one", "a/two", "ab/one", "b/one"} {
		create(t, records, Pod(key, "name="+strings.ReplaceAll(key, "/", "-")))
	}
	change(t, records, "a/two", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	change(t, records, "b/one", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	if _, err := st.Create(bounded(t), "/registry/podsecurity/x", []byte("other")); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ ns, label, field, want string }{
		{"", "", "", "a/one a/two ab/one b/one"},
		{"a", "", "", "a/one a/two"},
		{"none", "", "", ""},
		{"", "name in (a-one,b-one)", "", "a/one b/one"},
		{"", "name!=a-one", "", "a/two ab/one b/one"},
		{"", "", "metadata.name=one", "a/one ab/one b/one"},
		{"a", "", "metadata.name=one", "a/one"},
		{"a", "name=a-two", "metadata.name=one", ""},
		{"", "", "metadata.name=one,metadata.namespace=ab", "ab/one"},
		{"", "", "spec.nodeName=n1", "a/two b/one"},
		{"b", "", "spec.nodeName=n1", "b/one"},
		{"", "name=a-two", "spec.nodeName=n1", "a/two"},
		{"", "", "spec.nodeName!=n1", "a/one ab/one"},
		{"", "", "spec.nodeName=", "a/one ab/one"},
	}
	for _, tc := range tests {
		l := list(t, records, where(t, tc.ns, tc.label, tc.field))
		want(t, tc.ns+"|"+tc.label+"|"+tc.field, names(l), tc.want)
		if rev, err := st.Revision(bounded(t)); err != nil || l.Revision != rev {
			t.Errorf("list revision: got %d, want %d", l.Revision, rev)
		}
	}
}

func testListPages(t *testing.T, records Records, st store.Store) {
	var all []string
	for i := range 23 {
		key := numbered("ns/p", i)
		all = append(all, key)
		create(t, records, Pod(key, "odd="+numbered("", i%2)))
	}
	first := ""
	query := Everything()
	query.Limit = 10
	var got []string
	for page := 0; ; page++ {
		l := list(t, records, query)
		got = append(got, strings.Fields(names(l))...)
		switch first {
		case "":
			first = objects.FormatRevision(l.Revision)
		default:
			want(t, "revision of a further page", objects.FormatRevision(l.Revision), first)
		}
		if l.Continue == "" {
			if l.Remaining != nil {
				t.Errorf("the last page says that %d remain", *l.Remaining)
			}
			break
		}
		if l.Remaining == nil || int(*l.Remaining) != len(all)-len(got) {
			t.Errorf("page %d: got remaining %v, want %d", page, l.Remaining, len(all)-len(got))
		}
		query.Continue = l.Continue
		create(t, records, Pod(numbered("ns/zlate", page))) // not in the first page's revision
	}
	want(t, "pages", strings.Join(got, " "), strings.Join(all, " "))
	query = where(t, "ns", "odd=001", "")
	query.Limit = 5
	l := list(t, records, query)
	want(t, "selected page", names(l), "ns/p001 ns/p003 ns/p005 ns/p007 ns/p009")
	if l.Remaining != nil {
		t.Errorf("a selected page says that %d remain", *l.Remaining)
	}
	raw, err := base64.RawURLEncoding.DecodeString(l.Continue)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "token", string(raw), `{"v":"meta.k8s.io/v1","rv":`+objects.FormatRevision(l.Revision)+
		`,"start":"p009\u0000"}`)
	if rev, err := st.Revision(bounded(t)); err != nil || rev != l.Revision {
		t.Errorf("list revision: got %d, want %d", l.Revision, rev)
	}
}

func testListVersions(t *testing.T, records Records, _ store.Store) {
	one := create(t, records, Pod("ns/a"))
	two := create(t, records, Pod("ns/b"))
	three := create(t, records, Pod("ns/c"))
	tests := []struct {
		version, match string
		limit          int64
		want           string
	}{
		{"", "", 0, "ns/a ns/b ns/c"},
		{"0", "", 0, "ns/a ns/b ns/c"},
		{"0", "", 2, "ns/a ns/b ns/c"}, // everything
		{"0", "NotOlderThan", 2, "ns/a ns/b ns/c"},
		{rv(one), "", 0, "ns/a ns/b ns/c"},
		{rv(one), "NotOlderThan", 0, "ns/a ns/b ns/c"},
		{rv(one), "Exact", 0, "ns/a"},
		{rv(two), "Exact", 1, "ns/a"},
		{rv(two), "", 10, "ns/a ns/b"},
		{rv(three), "Exact", 0, "ns/a ns/b ns/c"},
	}
	for _, tc := range tests {
		q := Everything()
		q.ResourceVersion = tc.version
		q.Match = tc.match
		q.Limit = tc.limit
		l := list(t, records, q)
		want(t, "list at "+tc.version+" "+tc.match, names(l), tc.want)
		if tc.match == "Exact" {
			want(t, "exact revision", objects.FormatRevision(l.Revision), tc.version)
		}
	}
	for _, match := range []string{"", "Exact", "NotOlderThan"} {
		q := Everything()
		q.ResourceVersion = "999999"
		q.Match = match
		_, err := records.List(bounded(t), q)
		reason(t, "list in the future", err, metav1.StatusReasonTimeout)
		if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("list in the future: got %v, want the cause ResourceVersionTooLarge", err)
		}
	}
}

func testListExpired(t *testing.T, records Records, st store.Store) {
	old := create(t, records, Pod("ns/p000"))
	for i := range 9 {
		create(t, records, Pod(numbered("ns/p", i+1)))
	}
	query := Everything()
	query.Limit = 1
	query.ResourceVersion = rv(old)
	query.Match = "Exact"
	list(t, records, query)
	query.ResourceVersion = objects.FormatRevision(old.Revision + 4)
	query.Match = "Exact"
	page := list(t, records, query)
	last := change(t, records, "ns/p009", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	change(t, records, "ns/p000", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	if err := st.Compact(bounded(t), last.Revision); err != nil {
		t.Fatal(err)
	}
	query = Everything()
	query.ResourceVersion = objects.FormatRevision(old.Revision + 1)
	query.Match = "Exact"
	_, err := records.List(bounded(t), query)
	reason(t, "list before the compacted revision", err, metav1.StatusReasonExpired)
	if err != nil {
		want(t, "message", err.Error(), "The resourceVersion for the provided list is too old.")
	}
	raw, err := base64.RawURLEncoding.DecodeString(page.Continue)
	if err != nil {
		t.Fatal(err)
	}
	// A revision without a cached page, as after a restart.
	token := strings.Replace(string(raw), objects.FormatRevision(page.Revision),
		objects.FormatRevision(page.Revision-1), 1)
	query = Everything()
	query.Continue = base64.RawURLEncoding.EncodeToString([]byte(token))
	_, err = records.List(bounded(t), query)
	reason(t, "continue before the compacted revision", err, metav1.StatusReasonExpired)
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Continue == "" {
		t.Fatalf("continue before the compacted revision: got %v without a token to go on", err)
	}
	if !strings.HasPrefix(err.Error(),
		"The provided continue parameter is too old to display a consistent list result.") {
		t.Errorf("got message %q", err.Error())
	}
	query.Continue = status.Status().Continue
	want(t, "the rest, without consistency", names(list(t, records, query)),
		"ns/p001 ns/p002 ns/p003 ns/p004 ns/p005 ns/p006 ns/p007 ns/p008 ns/p009")
}

func testListRefused(t *testing.T, records Records, _ store.Store) {
	create(t, records, Pod("ns/a"))
	enc := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	tests := []struct {
		what, version, match, token string
		want                        metav1.StatusReason
	}{
		{"match without version", "", "Exact", "", metav1.StatusReasonInvalid},
		{"exact at 0", "0", "Exact", "", metav1.StatusReasonInvalid},
		{"unknown match", "1", "Older", "", metav1.StatusReasonInvalid},
		{"bad version", "-3", "", "", metav1.StatusReasonBadRequest},
		{"not base64", "", "", "!!", metav1.StatusReasonBadRequest},
		{"not JSON", "", "", enc("x"), metav1.StatusReasonBadRequest},
		{"other version", "", "", enc(`{"v":"v2","rv":5,"start":"a"}`), metav1.StatusReasonBadRequest},
		{"no revision", "", "", enc(`{"v":"meta.k8s.io/v1","start":"a"}`), metav1.StatusReasonBadRequest},
		{"no start", "", "", enc(`{"v":"meta.k8s.io/v1","rv":5}`), metav1.StatusReasonBadRequest},
		{"way out", "", "", enc(`{"v":"meta.k8s.io/v1","rv":5,"start":"../secrets/a"}`), metav1.StatusReasonBadRequest},
		{"token and version", "5", "", enc(`{"v":"meta.k8s.io/v1","rv":5,"start":"a"}`), metav1.StatusReasonBadRequest},
	}
	for _, tc := range tests {
		q := Everything()
		q.ResourceVersion = tc.version
		q.Match = tc.match
		q.Continue = tc.token
		_, err := records.List(bounded(t), q)
		reason(t, tc.what, err, tc.want)
	}
}

// testDeleteCorrupt: an unreadable object is removed, a readable one is not.
func testDeleteCorrupt(t *testing.T, records Records, st store.Store) {
	create(t, records, Pod("ns/good"))
	if _, err := st.Create(bounded(t), "/registry/pods/ns/bad", []byte("junk")); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		_, err := records.DeleteCorrupt(bounded(t), "ns", "good", dry)
		reason(t, "a readable pod", err, metav1.StatusReasonConflict)
		_, err = records.DeleteCorrupt(bounded(t), "ns", "none", dry)
		reason(t, "a missing pod", err, metav1.StatusReasonNotFound)
		r, err := records.DeleteCorrupt(bounded(t), "ns", "bad", dry)
		if err != nil || r.Key != "/registry/pods/ns/bad" || (r.Revision == 0) != dry {
			t.Errorf("an unreadable pod, dry %v: receipt %+v, %v", dry, r, err)
		}
	}
	_, err := records.Get(bounded(t), "ns", "bad", "")
	reason(t, "get after the deletion", err, metav1.StatusReasonNotFound)
	if _, err := records.Get(bounded(t), "ns", "good", ""); err != nil {
		t.Errorf("the readable pod: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
)

// lived records in tl a pod from its creation to its end.
func lived(tl *Ledger, i int) {
	name := "pod-" + strconv.Itoa(i)
	subject := event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      name,
		UID:       "uid-" + name,
	}
	at := time.Now()
	request := func(verb, sub string) {
		tl.Listen(event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        at,
			Took:      time.Millisecond,
			Subject:   subject,
			Detail: &event.Request{
				Verb:             verb,
				Resource:         "pods",
				Subresource:      sub,
				User:             "system:serviceaccount:kube-system:replicaset-controller",
				AuditID:          fmt.Sprintf("audit-%s-%s-%d", verb, sub, i),
				Code:             200,
				OwnerUID:         "owner",
				Key:              "/registry/pods/default/" + name,
				AdmissionChanged: []event.Change{{By: "ServiceAccount", Field: "spec.volumes"}},
			},
		})
		at = at.Add(time.Millisecond)
	}
	request("POST", "")
	tl.Listen(event.Event{
		Step:      event.StepDecision,
		Component: "scheduler",
		At:        at,
		Subject:   subject,
		Detail: &decisions.Attempt{
			PodDecisionStatus: decisions.PodDecisionStatus{
				Attempt:  1,
				Nodes:    1000,
				Feasible: 1000,
				Node:     "node-1",
				Scores:   []decisions.NodeScore{{Node: "node-1", Total: 300, Plugins: []decisions.PluginScore{{}, {}, {}}}},
			},
		},
	})
	request("POST", "binding")
	request("PATCH", "status")
	request("PATCH", "status")
	request("DELETE", "")
	request("PATCH", "status")
	request("DELETE", "")
}

// TestStoriesAtRest: packed stories read the same, and go on.
func TestStoriesAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tl := New(Config{})
		twin := New(Config{})
		for i := range restMin + 10 {
			lived(tl, i)
		}
		lived(twin, 5)
		time.Sleep(2*restAfter + time.Second)
		synctest.Wait()
		tl.mu.Lock()
		record := tl.pods.of("uid-pod-5")
		if record.packed.marks != 8 || len(record.first) != 0 || tl.timer {
			t.Errorf("%d marks are packed and %d are not, timer %v; want 8, none and none", record.packed.marks,
				len(record.first), tl.timer)
		}
		tl.mu.Unlock()
		more := func(tl *Ledger) *story.Record {
			tl.Listen(event.Event{
				Step:      event.StepQueued,
				Component: "scheduler",
				At:        time.Now(),
				Subject:   record.subject,
				Detail:    &event.Queued{Why: "again"},
			})
			s, _, err := tl.Pod("default", "pod-5")
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		if diff := cmp.Diff(more(twin), more(tl)); diff != "" {
			t.Errorf("a story that was packed (+) differs from one that was not (-):\n%s", diff)
		}
		time.Sleep(2*restAfter + time.Second)
		synctest.Wait()
		if diff := cmp.Diff(more(twin), more(tl)); diff != "" {
			t.Errorf("packed again:\n%s", diff)
		}
	})
}

// TestStoriesAtRestAreSmall bounds the memory that thousands of ended pods leave.
func TestStoriesAtRestAreSmall(t *testing.T) {
	const pods, each = 4000, 1500
	before := heap()
	synctest.Test(t, func(t *testing.T) {
		tl := New(Config{DecisionBytes: 1}) // these have a bound of their own
		for i := range pods {
			lived(tl, i)
		}
		time.Sleep(2*restAfter + time.Second)
		synctest.Wait()
		if got := int(heap()-before) / pods; got > each {
			t.Errorf("a pod at rest takes %d bytes, want %d at most", got, each)
		} else {
			t.Logf("%d bytes", got)
		}
		runtime.KeepAlive(tl)
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) // far below
}

// TestPackedAgain: one packer packs stories one after the other, also those that it packed before, and leaves little
// garbage.
func TestPackedAgain(t *testing.T) {
	tl := New(Config{})
	packer, err := newPacker()
	if err != nil {
		t.Fatal(err)
	}
	defer packer.close()
	var all []packed
	for i := range 3 {
		lived(tl, i)
		done, _, ok := packer.pack(tl.pods.of("uid-pod-" + strconv.Itoa(i)).first)
		if !ok {
			t.Fatal("not packed")
		}
		all = append(all, done)
	}
	for i, done := range all {
		if diff := cmp.Diff(done.unpack(), packer.unpack(done)); diff != "" || done.marks != 8 ||
			done.unpack()[0].Subject.Name != "pod-"+strconv.Itoa(i) {
			t.Errorf("pod %d, %d marks: a packer's own way back (+) is another:\n%s", i, done.marks, diff)
		}
	}
	marks := tl.pods.of("uid-pod-1").first
	// the race detector drops from pools at random
	if got := testing.AllocsPerRun(50, func() { packer.pack(marks) }); got > 50 {
		t.Errorf("packing a story takes %v allocations, want 50 at most", got)
	}
}

// BenchmarkPack packs the marks of one pod, and packs them again as when a pod that was at rest ends.
func BenchmarkPack(b *testing.B) {
	tl := New(Config{})
	lived(tl, 1)
	p, err := newPacker()
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	marks := tl.pods.of("uid-pod-1").first
	b.ReportAllocs()
	for b.Loop() {
		once, _, _ := p.pack(marks)
		if _, _, ok := p.pack(p.unpack(once)); !ok {
			b.Fatal("not packed")
		}
	}
}

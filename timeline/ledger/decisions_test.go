// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"keelson/timeline/story"
	"keelson/timeline/storytest"
)

// TestDecisionsAreBounded: whole decisions take no more bytes than they may, and those that went leave their brief form
// in the story.
func TestDecisionsAreBounded(t *testing.T) {
	const limit, pods = 1 << 20, 2000
	before := heap()
	tl := New(Config{DecisionBytes: limit})
	for i := range pods {
		tl.Listen(storytest.Attempted(i, 20))
	}
	grown := heap() - before
	kept := 0
	for i := range pods {
		d := tl.Decided(types.UID(fmt.Sprint("uid-", i)))
		if d == nil {
			continue
		}
		if kept++; len(d.Attempt.Refusals) != 20 || len(d.Attempt.Scores) != 20 {
			t.Fatalf("pod %d is remembered with %d refusals and %d scores, want 20 of each", i, len(d.Attempt.Refusals),
				len(d.Attempt.Scores))
		}
	}
	if kept == 0 || kept == pods || tl.Decided("uid-1999") == nil || tl.Decided("uid-0") != nil ||
		tl.decided.bytes > limit {
		t.Errorf("%d decisions in %d bytes; want the last ones, in %d at most", kept, tl.decided.bytes, limit)
	}
	if stories := int64(pods * 2500); grown > 2*limit+stories {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	why := func(name string) (story.Why, error) {
		pod, owners, err := tl.Pod("default", name)
		if err != nil {
			return story.Why{}, err
		}
		return story.WhyOf(pod, owners, time.Now()), nil
	}
	old, err := why("p0")
	if err != nil || !old.Brief || len(old.Decision.Refusals) != 3 {
		t.Errorf("a decision that went: %+v, %v; want its brief form", old, err)
	}
	whole, err := why("p1999")
	if err != nil || whole.Brief || len(whole.Decision.Refusals) != 20 {
		t.Errorf("a decision that is there: %+v, %v; want it whole", whole, err)
	}
	runtime.KeepAlive(tl)
}

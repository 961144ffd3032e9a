// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"keelson/event"
	"keelson/timeline/story"
	"keelson/timeline/storytest"
	"keelson/timeline/text"
)

var (
	set = storytest.Set
	pod = storytest.Pod
)

const podName = storytest.PodName

func at(us int) time.Time { return storytest.At(us) }

func us(n int) time.Duration { return storytest.US(n) }

func journey() []event.Event { return storytest.Journey() }

func listening(marks []event.Event) *Ledger {
	t := New(Config{})
	for _, m := range marks {
		t.Listen(m)
	}
	return t
}

// storyOf is a pod's story, in words.
func storyOf(t *Ledger, namespace, name string) (story.Story, error) {
	pod, owners, err := t.Pod(namespace, name)
	if err != nil {
		return story.Story{}, err
	}
	s := story.Of(pod, owners)
	text.Fill(&s)
	return s, nil
}

func TestForgetsWhatIsUntouchedForLongest(t *testing.T) {
	tl := New(Config{Limit: 3})
	for i := range 5 {
		tl.Listen(event.Event{
			Step: event.StepQueued,
			At:   at(i),
			Subject: event.Subject{
				Resource:  "pods",
				Namespace: "default",
				Name:      fmt.Sprint(i),
				UID:       fmt.Sprint("uid-", i),
			},
			Detail: &event.Queued{},
		})
	}
	for i := range 5 {
		_, err := storyOf(tl, "default", fmt.Sprint(i))
		if gone := errors.Is(err, ErrUnknown); gone != (i < 2) {
			t.Errorf("pod %d: error %v, want it forgotten: %v", i, err, i < 2)
		}
	}
	if len(tl.names) != 3 || tl.Pods() != 3 {
		t.Errorf("%d names, %d pods; want 3, 3", len(tl.names), tl.Pods())
	}
}

func TestNamesakeReplaces(t *testing.T) {
	tl := listening(journey())
	again := pod
	again.UID = "pod-2"
	tl.Listen(event.Event{
		Step:      event.StepQueued,
		Component: "scheduler",
		At:        at(9_000_000),
		Subject:   again,
		Detail:    &event.Queued{},
	})
	// The old one's last words come late.
	tl.Listen(event.Event{
		Step:      event.StepTerminated,
		Component: "kubelet",
		At:        at(8_000_000),
		Subject:   pod,
		Detail:    &event.Status{},
	})
	if s, err := storyOf(tl, "default", podName); err != nil || s.UID != "pod-2" {
		t.Errorf("story of %q, %v; want pod-2", s.UID, err)
	}
}

func BenchmarkListen(b *testing.B) {
	tl := New(Config{})
	marks := journey()
	for i := 0; b.Loop(); i++ {
		m := marks[i%len(marks)]
		m.Subject.UID = fmt.Sprint(i / len(marks))
		tl.Listen(m)
	}
}

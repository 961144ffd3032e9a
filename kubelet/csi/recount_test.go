// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// counted is the driver's number in the CSINode.
func (b *bench) counted() int32 {
	b.t.Helper()
	c, err := b.api.StorageV1().CSINodes().Get(b.t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return *c.Spec.Drivers[0].Allocatable.Count
}

func counting(seconds int64) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: new(seconds)},
	}
}

// TestAttachLimit: a volume whose attachment failed with RESOURCE_EXHAUSTED is given up, and the driver counts again.
// For another code, or a driver that did not ask to be counted, it waits on.
func TestAttachLimit(t *testing.T) {
	for _, test := range []struct {
		name   string
		driver *storagev1.CSIDriver
		code   codes.Code
		limit  bool
		count  int32
	}{
		{"the node is full", counting(3600), codes.ResourceExhausted, true, 3},
		{"another error", counting(3600), codes.Internal, false, 7},
		{
			"a driver that does not count", noAttach(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = nil }),
			codes.ResourceExhausted, false, 7,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			bench := newBench(t, test.driver)
			bench.m.attachWithin = time.Millisecond
			bench.serve()
			attachment := &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: attachmentID(key{driverName, "handle"}, "n")},
				Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "n"},
			}
			attachment.Status.AttachError = &storagev1.VolumeError{
				Message:   "no",
				ErrorCode: new(int32(test.code)),
			}
			_, err := bench.api.StorageV1().VolumeAttachments().Create(t.Context(), attachment, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			bench.driver.SetMaxVolumes(3)
			_, err = bench.m.SetUp(t.Context(), claimed("u", "pv", "handle"))
			if _, limit := errors.AsType[*LimitError](err); limit != test.limit {
				t.Errorf("set up: %v", err)
			}
			if got := bench.counted(); got != test.count {
				t.Errorf("the node takes %d volumes, want %d", got, test.count)
			}
		})
	}
}

// TestRecount: a driver is asked again when its period has passed, and the CSINode has the new number. One without a
// period is not asked.
func TestRecount(t *testing.T) {
	bench := newBench(t)
	bench.serve()
	bench.driver.SetMaxVolumes(9)
	objects := cache.NewStore(cache.MetaNamespaceKeyFunc)
	due := map[string]time.Time{}
	recount := func() time.Time {
		t.Helper()
		var running sync.WaitGroup
		next := bench.m.counts.begin(t.Context(), objects, due, &running)
		running.Wait()
		return next
	}
	if next := recount(); !next.IsZero() || bench.counted() != 7 {
		t.Errorf("without a CSIDriver: next at %v, %d volumes", next, bench.counted())
	}
	if err := objects.Add(counting(60)); err != nil {
		t.Fatal(err)
	}
	if next := recount(); next.IsZero() || bench.counted() != 7 {
		t.Errorf("at the beginning of its period: next at %v, %d volumes", next, bench.counted())
	}
	due[driverName] = time.Now()
	if next := recount(); !next.After(time.Now()) || bench.counted() != 9 {
		t.Errorf("at its end: next at %v, %d volumes", next, bench.counted())
	}
	due[driverName] = time.Now().Add(time.Hour) // of a longer period
	if next := recount(); next.After(time.Now().Add(time.Minute)) {
		t.Errorf("after the period became shorter: next at %v", next)
	}
}

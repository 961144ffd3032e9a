// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"keelson/lib/signal"
)

// LimitError says that the node has as many volumes of a driver as it can attach. The pod that waits for one more
// fails, so that its controller makes another one, which goes elsewhere.
type LimitError struct{ Volume string }

func (e *LimitError) Error() string {
	return fmt.Sprintf("Node has reached its volume attachment limit, rejecting pod: unattached volumes=[%s]", e.Volume)
}

// exhausted reports whether the volume is not attached because the node can take no more. Only drivers whose CSIDriver
// has nodeAllocatableUpdatePeriodSeconds are asked; their number is counted again at once.
func (m *Mounter) exhausted(ctx context.Context, j *job) bool {
	if updatePeriod(j.object) == 0 {
		return false
	}
	attachment, err := m.cfg.API.StorageV1().VolumeAttachments().Get(ctx, j.use.AttachmentID, metav1.GetOptions{})
	if err != nil {
		return false
	}
	why := attachment.Status.AttachError
	if why == nil || why.ErrorCode == nil || codes.Code(*why.ErrorCode) != codes.ResourceExhausted { // of gRPC
		return false
	}
	m.counts.renew(ctx, j.driver)
	return true
}

// updatePeriod is how often a driver wants to be asked how many volumes the node takes; 0: never.
func updatePeriod(object *storagev1.CSIDriver) time.Duration {
	if object == nil || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

// counts are how many volumes of each driver the node takes, which a driver may change its mind about.
type counts struct {
	api        kubernetes.Interface
	drivers    *drivers
	published  *publisher
	registered signal.Signal // a driver has registered
	log        *slog.Logger
}

// renew asks a driver how many volumes the node takes, and writes a new number into the CSINode.
func (c *counts) renew(ctx context.Context, d *driver) {
	info, err := call(ctx, d.within, d.node.NodeGetInfo, &csiapi.NodeGetInfoRequest{})
	if err == nil {
		if d.max.Load() == info.GetMaxVolumesPerNode() {
			return
		}
		if err = d.takeMax(info.GetMaxVolumesPerNode()); err == nil {
			err = c.published.write(ctx)
		}
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("ask a csi driver how many volumes the node takes", "driver", d.name, "err", err)
	}
}

// run asks each driver as often as its CSIDriver wants it, until ctx is done. It watches these objects from the first
// registration on.
func (c *counts) run(ctx context.Context) {
	select {
	case <-c.registered.C():
	case <-ctx.Done():
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	changed := signal.New()
	informer := storageinformers.NewCSIDriverInformer(c.api, 0, cache.Indexers{})
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed.Notify() },
		UpdateFunc: func(_, _ any) { changed.Notify() },
		DeleteFunc: func(any) { changed.Notify() },
	})
	if err != nil {
		c.log.Error("watch CSIDrivers", "err", err) // only an informer that has ended refuses
		return
	}
	running.Go(func() { informer.RunWithContext(ctx) })
	due := map[string]time.Time{}
	for {
		var timer <-chan time.Time
		if next := c.begin(ctx, informer.GetStore(), due, &running); !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer:
		case <-changed.C():
		case <-c.registered.C():
		}
	}
}

// begin begins to ask the drivers that are due, and returns when the next is; zero: none. A driver that takes
// long to answer holds up no other.
func (c *counts) begin(
	ctx context.Context, objects cache.Store, due map[string]time.Time, running *sync.WaitGroup,
) time.Time {
	now := time.Now()
	var next time.Time
	for _, d := range c.drivers.all() {
		var period time.Duration
		if found, ok, _ := objects.GetByKey(d.name); ok { // a store in memory does not fail
			object, _ := found.(*storagev1.CSIDriver)
			period = updatePeriod(object)
		}
		if period == 0 {
			delete(due, d.name)
			continue
		}
		at, known := due[d.name]
		if known && !now.Before(at) && d.counting.CompareAndSwap(false, true) {
			running.Go(func() {
				defer d.counting.Store(false)
				c.renew(ctx, d)
			})
		}
		if !known || !now.Before(at) || at.After(now.Add(period)) {
			at = now.Add(period)
			due[d.name] = at
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

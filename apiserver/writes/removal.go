// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/store"
)

// outcome is what a delete does to an object in its current state.
type outcome uint8

const (
	removeNow            outcome = iota // delete it from the store
	setDeletionTimestamp                // store it with a deletion timestamp
	pending                             // it is marked already; nothing changes
)

// errRemoveNow and errPending end an update without a write.
var (
	errRemoveNow = errors.New("remove now")
	errPending   = errors.New("deletion is pending")
)

// Remove deletes the named object. removed is false if it is only marked as deleted.
func (w *Writer) Remove(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, name string, opts *metav1.DeleteOptions,
) (e *objects.Entry, removed bool, err error) {
	return w.RemoveChecked(ctx, rq, res, name, opts, w.admitDeletion(rq, res, IsDryRun(opts.DryRun)))
}

// RemoveChecked is Remove with another check in place of admission.
func (w *Writer) RemoveChecked(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, name string, opts *metav1.DeleteOptions,
	check deletionCheck,
) (entry *objects.Entry, removed bool, err error) {
	ns := Namespace(rq, res)
	dry := IsDryRun(opts.DryRun)
	ctx = store.UseReserve(ctx, store.FullReserve)
	for {
		var last, marked kind.Object // marked: the object as returned
		step := func(ctx context.Context, current kind.Object) (kind.Object, error) {
			last = current
			marked = nil
			next, err := deletionStep(ctx, res, name, current, opts, check)
			if errors.Is(err, errRemoveNow) {
				marked = next
			}
			return next, err
		}
		var receipt objects.Receipt
		if dry {
			entry, err = dryRemove(ctx, res, ns, name, step)
		} else {
			entry, _, receipt, err = res.Storage.Update(ctx, ns, name, false, objects.Replace(step))
		}
		switch {
		case errors.Is(err, errPending) || dry && errors.Is(err, errRemoveNow):
			removed = !errors.Is(err, errPending)
			return withDeletionTimestamp(&objects.Entry{Object: last}, marked), removed, nil
		case errors.Is(err, errRemoveNow):
			entry, receipt, err = res.Storage.Delete(ctx, ns, name, func(current kind.Object) error {
				if current.GetResourceVersion() != last.GetResourceVersion() {
					return errPending // the decision was for an older state: retry
				}
				return nil
			})
			if errors.Is(err, errPending) {
				continue
			}
			removed = true
		}
		if err != nil {
			return nil, false, err
		}
		RecordReceipt(rq, receipt)
		RecordSubject(rq, res, entry.Object)
		if removed {
			w.afterDelete(ctx, res, entry.Object)
			entry = withDeletionTimestamp(entry, marked)
		}
		return entry, removed, nil
	}
}

// afterDelete releases what the resource's allocator gave to a deleted object.
func (w *Writer) afterDelete(ctx context.Context, res *resources.Resource, obj kind.Object) {
	if allocator := w.allocators[res.GroupResource()]; allocator != nil {
		allocator.AfterDelete(ctx, obj)
	}
}

// withDeletionTimestamp is the response for an object that was removed at once although its kind has a grace period: it
// has a deletion timestamp.
func withDeletionTimestamp(e *objects.Entry, marked kind.Object) *objects.Entry {
	if marked == nil {
		return e
	}
	marked.SetResourceVersion(e.Object.GetResourceVersion())
	return &objects.Entry{Object: marked}
}

func dryRemove(
	ctx context.Context, res *resources.Resource, ns, name string,
	step func(context.Context, kind.Object) (kind.Object, error),
) (*objects.Entry, error) {
	current, err := res.Storage.Get(ctx, ns, name, "")
	if err != nil {
		return nil, err
	}
	obj, err := step(ctx, current.Object)
	if err != nil {
		return nil, err
	}
	return &objects.Entry{Object: obj}, nil
}

// deletionCheck may reject the deletion of an object in its current state.
type deletionCheck func(ctx context.Context, current kind.Object, opts *metav1.DeleteOptions) error

// admitDeletion runs admission. For a collection the request names no object.
func (w *Writer) admitDeletion(rq *pipeline.Request, res *resources.Resource, dry bool) deletionCheck {
	return func(ctx context.Context, current kind.Object, opts *metav1.DeleteOptions) error {
		ar := AdmissionRequest(rq, res, admission.Delete, nil, current, opts, dry)
		if err := w.Admission.Mutate(ctx, rq, ar, res, nil); err != nil {
			return err
		}
		return w.Admission.Do(ctx, rq, ar, NothingStored)
	}
}

// deletionStep handles one state of the object: preconditions, admission, then the outcome.
func deletionStep(
	ctx context.Context, res *resources.Resource, name string, current kind.Object, opts *metav1.DeleteOptions,
	check deletionCheck,
) (kind.Object, error) {
	if err := Preconditions(res, name, current, opts.Preconditions); err != nil {
		return nil, err
	}
	own := opts.DeepCopy() // the kind may set a grace period
	if err := check(ctx, current, own); err != nil {
		return nil, err
	}
	next, what := deletion(res, current, own, time.Now())
	//exhaustive:enforce
	switch what {
	case setDeletionTimestamp:
	case removeNow:
		return next, errRemoveNow
	case pending:
		return nil, errPending
	}
	return next, nil
}

// deletion decides the outcome of a delete for one state of an object. It returns the object to store for
// setDeletionTimestamp; for removeNow the object in the response, nil: the current one.
func deletion(
	res *resources.Resource, current kind.Object, opts *metav1.DeleteOptions, now time.Time,
) (kind.Object, outcome) {
	next, _ := current.DeepCopyObject().(kind.Object)
	seconds, graceful, waits := gracePeriod(res, next, opts, now)
	if waits {
		return nil, pending
	}
	next.SetFinalizers(collectorFinalizers(res, current, opts))
	held := len(next.GetFinalizers()) > 0 || res.DeletionBlocked != nil && res.DeletionBlocked(next)
	switch {
	case graceful && (seconds > 0 || held):
	case held && res.Terminate != nil: // counts as no change; there is no grace period
		if next.GetDeletionTimestamp() == nil {
			at := metav1.NewTime(now).Rfc3339Copy()
			next.SetDeletionTimestamp(&at)
		}
	case held:
		markDeleting(next, now, res.Terminate == nil)
	case graceful:
		return next, removeNow
	default:
		return nil, removeNow
	}
	if res.Terminate != nil {
		res.Terminate(next)
	}
	return next, setDeletionTimestamp
}

// gracePeriod sets the fields of a graceful deletion in next. graceful is false for kinds without a grace period; waits
// means that the object is marked already and opts do not shorten its time.
func gracePeriod(
	res *resources.Resource, next kind.Object, opts *metav1.DeleteOptions, now time.Time,
) (seconds int64, graceful, waits bool) {
	before := next.GetDeletionGracePeriodSeconds()
	if next.GetDeletionTimestamp() != nil {
		if before == nil || *before == 0 {
			return 0, false, false
		}
		if opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds >= *before {
			return 0, true, true
		}
		seconds = max(*opts.GracePeriodSeconds, 0)
		at := metav1.NewTime(next.GetDeletionTimestamp().Add(time.Duration(seconds-*before) * time.Second))
		if at.Time.Before(now) { // its time is over already: give its agent a moment
			at = metav1.NewTime(now).Rfc3339Copy()
			seconds = min(seconds, 1)
		}
		next.SetDeletionTimestamp(&at)
		next.SetDeletionGracePeriodSeconds(&seconds)
		return seconds, true, false
	}
	if !res.Graceful {
		return 0, false, false
	}
	seconds = res.Grace(next, opts)
	at := metav1.NewTime(now.Add(time.Duration(seconds) * time.Second)).Rfc3339Copy()
	next.SetDeletionTimestamp(&at)
	next.SetDeletionGracePeriodSeconds(&seconds)
	if next.GetGeneration() > 0 {
		next.SetGeneration(next.GetGeneration() + 1)
	}
	return seconds, true, false
}

// markDeleting marks an object that is removed when its finalizers are gone. A namespace has no grace period.
func markDeleting(next kind.Object, now time.Time, period bool) {
	at := metav1.NewTime(now).Rfc3339Copy()
	if next.GetDeletionTimestamp() == nil && next.GetGeneration() > 0 {
		next.SetGeneration(next.GetGeneration() + 1)
	}
	if t := next.GetDeletionTimestamp(); t == nil || t.After(at.Time) {
		next.SetDeletionTimestamp(&at)
	}
	if zero := int64(0); period {
		next.SetDeletionGracePeriodSeconds(&zero)
	}
}

// collectorFinalizers are the finalizers after adding or removing the garbage collector's, as the propagation policy
// requires.
func collectorFinalizers(res *resources.Resource, obj kind.Object, opts *metav1.DeleteOptions) []string {
	old := obj.GetFinalizers()
	orphan := slices.Contains(old, metav1.FinalizerOrphanDependents)
	foreground := slices.Contains(old, metav1.FinalizerDeleteDependents)
	switch {
	case opts.OrphanDependents != nil: //nolint:staticcheck // deprecated, but still sent by old clients
		orphan = *opts.OrphanDependents //nolint:staticcheck // the same
		foreground = false
	case opts.PropagationPolicy != nil:
		orphan = *opts.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *opts.PropagationPolicy == metav1.DeletePropagationForeground
	case !orphan && !foreground:
		orphan = res.OrphanByDefault
	}
	var out []string
	for _, f := range old {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			out = append(out, f)
		}
	}
	if orphan {
		out = append(out, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		out = append(out, metav1.FinalizerDeleteDependents)
	}
	return out
}

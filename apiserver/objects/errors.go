// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/store"
)

const (
	messageModified = "the object has been modified; please apply your changes to the latest version and " +
		"try again"
	messageListExpired     = "The resourceVersion for the provided list is too old."
	messageContinueExpired = "The provided continue parameter is too old to display a consistent list result. You " +
		"can start a new list without the continue parameter, or use the continue token in this response to retrieve " +
		"the remainder of the results. Continuing with the provided token results in an inconsistent list - objects " +
		"that were created, modified, or deleted between the time the first chunk was returned and now may show up " +
		"in the list."
	messageVersionTooLarge   = "Too large resource version"
	messageVersionAndToken   = "specifying resource version is not allowed when using continue"
	messageVersionOnCreate   = "resourceVersion should not be set on objects to be created"
	retryTooLargeAfterSecs   = 1
	inconsistentContinuation = -1
)

// ErrVersionOnCreate rejects a create with a resourceVersion.
var ErrVersionOnCreate = errors.New(messageVersionOnCreate)

// invalidVersion is not a Status: get and watch return it as a 500 with the text, list as a 400.
func invalidVersion(rv string, err error) error {
	return field.Invalid(field.NewPath("resourceVersion"), rv, err.Error())
}

// sizeError rejects an object above the size limit. It is store.ErrTooLarge and also a Status for the client.
type sizeError struct{ *apierrors.StatusError }

func (*sizeError) Is(target error) bool { return target == store.ErrTooLarge }

func (e *sizeError) Unwrap() error { return e.StatusError }

// TooLarge rejects a revision that the server has not reached.
func TooLarge(wanted, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("%s: %d, current: %d", messageVersionTooLarge, wanted, current),
		retryTooLargeAfterSecs)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{
		{Type: metav1.CauseTypeResourceVersionTooLarge, Message: messageVersionTooLarge},
	}
	return err
}

// TooOld ends a watch whose start revision is no longer available.
func TooOld(rev, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", rev, oldest))
}

func (c Config) conflict(name string) error {
	return apierrors.NewConflict(c.Resource, name, errors.New(messageModified))
}

// Expired is the response to a list at a revision that is no longer available. With a continue token it offers an
// inconsistent continuation.
func (p Plan) Expired() error {
	if !p.Continued {
		return apierrors.NewResourceExpired(messageListExpired)
	}
	err := apierrors.NewResourceExpired(messageContinueExpired)
	err.ErrStatus.Continue = encodeContinue(p.From, p.Prefix, inconsistentContinuation)
	return err
}

// CheckQuery validates list options with Kubernetes' messages.
func CheckQuery(q *ListQuery, watch bool) error {
	errs := validation.ValidateListOptions(&internalversion.ListOptions{
		Watch:                watch,
		ResourceVersion:      q.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatch(q.Match),
		Continue:             q.Continue,
		Limit:                q.Limit,
		SendInitialEvents:    q.SendInitialEvents,
	}, true)
	if len(errs) > 0 {
		return invalid.New(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	return nil
}

// storeError converts a store error to the client's error.
func (c Config) storeError(err error, name string) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(c.Resource, name)
	case errors.Is(err, store.ErrExists):
		return apierrors.NewAlreadyExists(c.Resource, name)
	case errors.Is(err, store.ErrClosed):
		return apierrors.NewServiceUnavailable("the server is shutting down")
	}
	if fault := (*store.UnavailableError)(nil); errors.As(err, &fault) { // 500, not 503: the write may have happened
		return apierrors.NewInternalError(err)
	}
	return err
}

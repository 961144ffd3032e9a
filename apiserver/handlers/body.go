// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
)

// bufferPool holds reused buffers: decoding copies what it keeps.
var bufferPool = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooledBuffer limits the size of a reused buffer.
const maxPooledBuffer = 256 << 10

// withBody reads the request's body and passes it to use, which must not keep it.
func withBody(r *http.Request, use func([]byte) error) error {
	rq := pipeline.From(r.Context())
	leave, err := heavy.read(r.Context(), rq, r.ContentLength)
	if err != nil {
		return err
	}
	defer leave()
	buf, _ := bufferPool.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= maxPooledBuffer {
			buf.Reset()
			bufferPool.Put(buf)
		}
	}()
	if r.Body != nil {
		if _, err := buf.ReadFrom(r.Body); err != nil {
			return bodyReadError(err)
		}
	}
	parts, err := wire.CheckDepth(buf.Bytes())
	if err != nil {
		return err
	}
	if err := heavy.decode(r.Context(), rq, buf.Len(), parts); err != nil {
		return err
	}
	return use(buf.Bytes())
}

func bodyReadError(err error) error {
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", tooBig.Limit))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, os.ErrDeadlineExceeded):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	return apierrors.NewInternalError(fmt.Errorf("read request body: %w", err))
}

// decode decodes the body as an object of the resource's kind, with defaults.
func decode(
	r *http.Request, rq *pipeline.Request, res *resources.Resource, fieldValidation string,
) (kind.Object, error) {
	begin := time.Now()
	var o kind.Object
	if res.Read != nil {
		var err error
		if o, err = decodeCustom(r, rq, res, fieldValidation); err != nil {
			return nil, err
		}
	} else {
		obj, err := decodeAs(r, rq, res.GVK(), res.New(), fieldValidation)
		if err != nil {
			return nil, err
		}
		var ok bool
		if o, ok = obj.(kind.Object); !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the object provided is a %T", obj))
		}
	}
	rq.Mark.Decode = time.Since(begin)
	begin = time.Now()
	res.Default(o)
	rq.Mark.Default = time.Since(begin)
	return o, nil
}

// decodeAs decodes the body as an object of kind gvk.
func decodeAs(
	r *http.Request, rq *pipeline.Request, gvk schema.GroupVersionKind, into runtime.Object, fieldValidation string,
) (runtime.Object, error) {
	media, ok := wire.BodyMedia(r.Header.Get("Content-Type"))
	if !ok {
		return nil, wire.UnsupportedMedia(nil)
	}
	v := validationOf(fieldValidation)
	var obj runtime.Object
	err := withBody(r, func(b []byte) error {
		var err error
		obj, err = wire.Decode(b, media, v, gvk, into, rq.Warn)
		return err
	})
	if err == nil {
		auditSent(rq, obj, gvk)
	}
	return obj, err
}

// decodeCustom decodes the body as a custom resource.
func decodeCustom(
	r *http.Request, rq *pipeline.Request, res *resources.Resource, fieldValidation string,
) (kind.Object, error) {
	media, ok := wire.BodyMedia(r.Header.Get("Content-Type"))
	if !ok {
		media = wire.Proto // rejected like protobuf
	}
	var obj kind.Object
	err := withBody(r, func(b []byte) error {
		var err error
		obj, err = wire.DecodeCustom(b, media, validationOf(fieldValidation), res.GVK(), res.Read, rq.Warn)
		return err
	})
	if err == nil {
		auditSent(rq, obj, res.GVK())
	}
	return obj, err
}

// validationOf converts the query parameter fieldValidation.
func validationOf(requested string) wire.Validation {
	if requested == "" {
		return wire.Warn
	}
	return wire.Validation(requested)
}

// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/api/networking/reach"
	"keelson/client"
	"keelson/lib/connlimit"
	"keelson/timeline/cause"
	"keelson/timeline/packet"
	"keelson/timeline/story"
)

// Asker is who asks a question: a handler that answers further requests with the asker's rights alone, and whom the
// question counts for.
type Asker struct {
	Further http.Handler
	Owner   connlimit.Owner
}

// Limits of questions. A list with more objects is an error, because half of it would give a wrong answer.
const (
	maxQuestions = 16       // of tenants at a time, a quarter of them of one
	maxReads     = 700      // for one question; a namespace that is deleted takes the most
	maxObjects   = 2000     // of one list
	maxRead      = 32 << 20 // bytes of one answer of the API
	maxAnswer    = 8 << 20
	maxQuestion  = 16 << 10
	maxTime      = 30 * time.Second
)

// Limits bound the questions of one kind.
type Limits struct {
	Places *connlimit.Places // at a time
	// Reads are requests for one question, Objects those of one list (0: any), Bytes those of all answers of the API to
	// one question (0: any).
	Reads   int64
	Objects int
	Bytes   int64
	// Body is the number of bytes that the body of a question may have; 0: it has none.
	Body int64
}

// Answer says why something is as it is. One of Pod, Service and Object is there.
type Answer struct {
	Pod     *story.Why      `json:"pod,omitempty"`
	Service *packet.Service `json:"service,omitempty"`
	Object  *cause.Answer   `json:"object,omitempty"`
	// Pods are those of a workload, which Pod is the first of. Lacks and Waits are described at Pods.
	Pods  []OwnedPod `json:"pods,omitempty"`
	Lacks string     `json:"lacks,omitempty"`
	Waits string     `json:"waits,omitempty"`
}

// OwnedPod is a pod of a workload.
type OwnedPod struct {
	Name   string `json:"name"`
	Node   string `json:"node,omitempty"`
	Status string `json:"status"`
}

// errQuestion is a question that cannot be answered: 400.
var errQuestion = errors.New("bad question")

// ErrTooMuch means that the API has more than one question may read: 413.
var ErrTooMuch = errors.New("too much for one question")

// traceRequest is the body of a question for a trace.
type traceRequest struct {
	To      Destination     `json:"to"`
	UDP     bool            `json:"udp,omitempty"`
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Serve answers questions within their limits, by a function that reads through a client of the asker.
func Serve(
	asker func(*http.Request) Asker, limits Limits,
	answer func(ctx context.Context, cl *client.Client, r *http.Request) (any, error),
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		asker := asker(r)
		body, err := limits.readBody(r) // before it has a place, which a slow client would keep
		if err != nil {
			refused(w, err)
			return
		}
		if !limits.Places.Enter(asker.Owner) {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many questions at once")
			return
		}
		defer limits.Places.Leave(asker.Owner)
		ctx, cancel := context.WithTimeout(r.Context(), maxTime)
		defer cancel()
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		cl, err := client.InProcess(&bounded{next: asker.Further, limits: limits, stop: stop}, nil, "keelson-ask")
		if err != nil {
			refused(w, err)
			return
		}
		r = r.WithContext(ctx)
		r.Body = io.NopCloser(bytes.NewReader(body))
		out, err := answer(ctx, cl, r)
		if cause := context.Cause(ctx); errors.Is(cause, ErrTooMuch) {
			err = cause
		}
		if err != nil {
			refused(w, err)
			return
		}
		doc, err := json.Marshal(out)
		if err == nil && len(doc) > maxAnswer {
			err = fmt.Errorf("%w: the answer has %d bytes", ErrTooMuch, len(doc))
		}
		if err != nil {
			refused(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(doc) // an error means that the client is gone
	}
}

// readBody reads the body of a question.
func (l *Limits) readBody(r *http.Request) ([]byte, error) {
	if l.Body == 0 || r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, l.Body+1))
	switch {
	case err != nil:
		return nil, apierrors.NewBadRequest("read the question: " + err.Error())
	case int64(len(body)) > l.Body:
		return nil, fmt.Errorf("%w: its body has more than %d bytes", ErrTooMuch, l.Body)
	}
	return body, nil
}

// refused writes an error as a Status: one of the API as it is.
func refused(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		s := status.Status()
		refuse(w, int(cmp.Or(s.Code, http.StatusInternalServerError)), s.Reason, s.Message)
	case errors.Is(err, errQuestion), errors.As(err, new(*DestinationError)):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	case errors.Is(err, ErrTooMuch):
		refuse(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the question took too long")
	default: // what is asked for is not there, or has no pods, and why
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, err.Error())
	}
}

// why answers why an object is as it is.
func why(ctx context.Context, cl *client.Client, r *http.Request) (any, error) {
	namespace := cmp.Or(r.URL.Query().Get("namespace"), metav1.NamespaceDefault)
	word := r.PathValue("type")
	name := r.PathValue("name")
	if err := names(namespace, name); err != nil {
		return nil, err
	}
	hc, err := rest.HTTPClientFor(cl.Config)
	if err != nil {
		return nil, err
	}
	caller := &Caller{Namespace: namespace, Get: func(ctx context.Context, path string) (io.ReadCloser, error) {
		body, err := Get(ctx, hc, cl.Config.Host, path)
		if err != nil {
			return nil, err
		}
		return shortened{io.LimitReader(body, maxRead), body}, nil
	}}
	out := &Answer{}
	switch {
	case slices.Contains(PodWords, word):
		out.Pod, _, err = caller.Pod(ctx, name)
		return out, err
	case slices.Contains(ServiceWords, word):
		out.Service, err = caller.Service(ctx, name)
		return out, err
	}
	for i := range Kinds {
		if slices.Contains(Kinds[i].Words, word) {
			out.Object, err = caller.Object(ctx, &Kinds[i], name)
			return out, err
		}
	}
	for i := range Owners {
		if slices.Contains(Owners[i].Words, word) {
			return out, caller.workload(ctx, &Owners[i], name, out)
		}
	}
	return nil, fmt.Errorf("%w: nothing is known about the type %q", errQuestion, word)
}

// workload answers for the pod of a workload that is in the worst state, and lists the others.
func (c *Caller) workload(ctx context.Context, o *Owner, name string, out *Answer) error {
	owned, err := c.Owned(ctx, o, name, o.Words[0]+"/"+name)
	if err != nil {
		return err
	}
	out.Lacks = owned.Lacks
	out.Waits = owned.Waits
	for i := range owned.List {
		pod := &owned.List[i]
		out.Pods = append(out.Pods, OwnedPod{Name: pod.Name, Node: pod.Spec.NodeName, Status: StatusOf(pod)})
	}
	out.Pod, _, err = c.Pod(ctx, owned.List[0].Name)
	return err
}

// trace answers where packets of a pod go.
func trace(ctx context.Context, cl *client.Client, r *http.Request) (any, error) {
	if err := names(r.PathValue("namespace"), r.PathValue("pod")); err != nil {
		return nil, err
	}
	var question traceRequest
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	if err := body.Decode(&question); err != nil {
		return nil, fmt.Errorf("%w: %w", errQuestion, err)
	}
	to := &question.To
	for _, name := range []string{to.Namespace, to.Name} {
		if err := names(cmp.Or(name, "x")); err != nil {
			return nil, err
		}
	}
	from, err := cl.CoreV1().Pods(r.PathValue("namespace")).Get(ctx, r.PathValue("pod"), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return Trace(ctx, cl.Interface, from, &TraceQuestion{
		To:      *to,
		As:      to.String(),
		UDP:     question.UDP,
		Timeout: cmp.Or(question.Timeout.Duration, reach.DefaultTimeout),
	})
}

// names checks that texts are names of objects: they become parts of paths.
func names(all ...string) error {
	const maxName = 253
	for _, name := range all {
		if wrong := content.IsPathSegmentName(name); name == "" || len(wrong) > 0 || len(name) > maxName {
			return fmt.Errorf("%w: %.60q is no name: %s", errQuestion, name, strings.Join(wrong, ", "))
		}
	}
	return nil
}

// shortened is the beginning of an answer of the API.
type shortened struct {
	io.Reader
	io.Closer
}

// bounded passes a limited number of requests on. Each list is limited, and so are the answers together.
type bounded struct {
	next   http.Handler
	limits Limits
	stop   context.CancelCauseFunc // ends the question
	reads  atomic.Int64
	bytes  atomic.Int64
}

func (b *bounded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.reads.Add(1) > b.limits.Reads {
		refuse(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
			fmt.Sprintf("%v: more than %d reads", ErrTooMuch, b.limits.Reads))
		return
	}
	query := r.URL.Query()
	if r.Method == http.MethodGet && !query.Has("limit") && b.limits.Objects > 0 {
		query.Set("limit", fmt.Sprint(b.limits.Objects))
		r.URL.RawQuery = query.Encode()
	}
	if b.limits.Bytes > 0 {
		w = &countedWriter{w, b}
	}
	b.next.ServeHTTP(w, r)
}

// countedWriter ends the question when its answers have too many bytes together, before they are kept.
type countedWriter struct {
	http.ResponseWriter
	of *bounded
}

func (w *countedWriter) Write(b []byte) (int, error) {
	if w.of.bytes.Add(int64(len(b))) > w.of.limits.Bytes {
		err := fmt.Errorf("%w: it has to read more than %d bytes", ErrTooMuch, w.of.limits.Bytes)
		w.of.stop(err)
		return 0, err
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is http.ResponseController's.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

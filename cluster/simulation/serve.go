// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/wire"
	"keelson/client"
	"keelson/lib/connlimit"
	"keelson/scheduler/whatif"
	"keelson/timeline/ask"
)

// Path is where the server answers: POST a Question, get an Answer.
const Path = "/keelson/v1/ask/whatif"

// Limits of a simulation at the server. It keeps all that it reads until it ends, and uses one processor.
const (
	maxAtOnce  = 2 // one of tenants
	maxReads   = 200
	maxBytes   = 32 << 20  // of all that it reads, about 20,000 pods
	maxBody    = 256 << 10 // YAML takes forty times as much to read
	maxPods    = 1000      // to place, with their decisions in the answer
	maxMade    = 8 << 20   // bytes of pods and claims that are made of templates, up to ten times as much in memory
	maxThreads = 1
)

// Handler answers questions as the asker, whose rights alone count for what is read.
func Handler(asker func(*http.Request) ask.Asker) http.Handler {
	limits := ask.Limits{
		Places: connlimit.NewPlaces(maxAtOnce),
		Reads:  maxReads,
		Bytes:  maxBytes,
		Body:   maxBody,
	}
	answer := ask.Serve(func(r *http.Request) ask.Asker {
		a := asker(r)
		a.Further = lists{a.Further}
		return a
	}, limits, serve)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			wire.WriteError(w, r, wire.MethodNotAllowed())
			return
		}
		answer(w, r)
	})
}

// serve answers one question.
func serve(ctx context.Context, cl *client.Client, r *http.Request) (any, error) {
	question := &Question{}
	if err := json.NewDecoder(r.Body).Decode(question); err != nil {
		return nil, apierrors.NewBadRequest("read the question: " + err.Error())
	}
	answer, err := question.simulate(ctx, cl.Config, whatif.Config{
		Parallelism: maxThreads,
		Max:         maxPods,
		MaxBytes:    maxMade,
	})
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, new(*whatif.TooManyError)):
		return nil, fmt.Errorf("%w: %w", ask.ErrTooMuch, err)
	case errors.As(err, &status): // of the API; the error says what was asked of it
		of := status.Status()
		of.Message = err.Error()
		return nil, &apierrors.StatusError{ErrStatus: of}
	}
	return nil, apierrors.NewBadRequest(err.Error())
}

// lists is a handler for informers that are to read everything once. Their watches would each need a seat next to that
// of the question, and all questions together could hold the seats that they wait for: a watch that begins with
// a list is refused, so that the informer lists, and one that goes on brings nothing.
type lists struct{ next http.Handler }

func (l lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case !query.Has("watch"):
		l.next.ServeHTTP(w, r)
	case query.Has("sendInitialEvents"):
		wire.WriteError(w, r, apierrors.NewBadRequest("a question only lists"))
	default:
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // the client waits for the header
		<-r.Context().Done()
	}
}

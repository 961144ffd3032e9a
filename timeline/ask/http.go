// SPDX-License-Identifier: Apache-2.0

// Package ask answers questions about a cluster: the story of a pod, and why something is as it is. It gathers what is
// kept in the ledger and what the API says, lets the other packages of timeline conclude, and returns their answers.
// cluster serves Handler at /keelson/v1. It writes nothing.
package ask

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/lib/connlimit"
	"keelson/timeline/ledger"
	"keelson/timeline/story"
	"keelson/timeline/text"
)

// Handler serves
//
//	GET  /keelson/v1/timeline/{namespace}/{pod}            a Story; with ?follow=true a line for each change until it
//	                                                       is done
//	GET  /keelson/v1/why/{namespace}/{pod}                 a Why, of what the ledger holds alone
//	GET  /keelson/v1/ask/why/{type}/{name}?namespace=NS    an Answer
//	POST /keelson/v1/ask/trace/{namespace}/{pod}           a packet.Trace, for a traceRequest
//
// The caller authorizes requests before; asker returns who sends a request. What is below ask/ is for every
// authenticated user: all that is read for an answer is read as the asker, who gets what it could read itself, and a
// refusal of the API is the answer's.
func Handler(kept *ledger.Ledger, asker func(*http.Request) Asker) http.Handler {
	limits := Limits{
		Places:  connlimit.NewTenantPlaces(maxQuestions),
		Reads:   maxReads,
		Objects: maxObjects,
	}
	withBody := limits
	withBody.Body = maxQuestion
	mux := http.NewServeMux()
	mux.HandleFunc("GET /keelson/v1/ask/why/{type}/{name}", Serve(asker, limits, why))
	mux.HandleFunc("POST /keelson/v1/ask/trace/{namespace}/{pod}", Serve(asker, withBody, trace))
	mux.HandleFunc("GET /keelson/v1/timeline/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		serveStory(kept, w, r)
	})
	mux.HandleFunc("GET /keelson/v1/why/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		why, err := Why(kept, r.PathValue("namespace"), r.PathValue("pod"))
		answer(w, r, why, err)
	})
	return mux
}

// Story is a pod's story; ledger.ErrUnknown if nothing is kept about the pod.
func Story(kept *ledger.Ledger, namespace, name string) (story.Story, error) {
	pod, owners, err := kept.Pod(namespace, name)
	if err != nil {
		return story.Story{}, err
	}
	s := story.Of(pod, owners)
	text.Fill(&s)
	return s, nil
}

// Why is the last scheduling result of a pod; ledger.ErrUnknown if nothing is kept about the pod.
func Why(kept *ledger.Ledger, namespace, name string) (story.Why, error) {
	pod, owners, err := kept.Pod(namespace, name)
	if err != nil {
		return story.Why{}, err
	}
	w := story.WhyOf(pod, owners, time.Now())
	text.FillWhy(&w)
	return w, nil
}

// Decision returns a function that makes the PodDecision of a pod's last attempt, nil if none is kept.
func Decision(kept *ledger.Ledger) func(types.UID) *decisions.PodDecision {
	return func(pod types.UID) *decisions.PodDecision { return text.PodDecision(kept.Decided(pod)) }
}

func serveStory(kept *ledger.Ledger, w http.ResponseWriter, r *http.Request) {
	ns := r.PathValue("namespace")
	name := r.PathValue("pod")
	if r.URL.Query().Get("follow") != "true" {
		s, err := Story(kept, ns, name)
		answer(w, r, s, err)
		return
	}
	next, done := kept.Follow(ns, name)
	defer done()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	flusher := http.NewResponseController(w)
	_ = flusher.Flush()
	for {
		changed := next() // before the story is read, so that no mark is missed
		s, err := Story(kept, ns, name)
		if err == nil {
			if out.Encode(s) != nil || flusher.Flush() != nil || s.Done {
				return
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		if !pause(r) {
			return
		}
	}
}

// followPause combines marks that arrive together into one update.
const followPause = 20 * time.Millisecond

func pause(r *http.Request) bool {
	timer := time.NewTimer(followPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// answer writes v, or err as a Status.
func answer(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound,
			fmt.Sprintf("pod %s/%s: %v", r.PathValue("namespace"), r.PathValue("pod"), err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error means that the client is gone
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  message,
		Reason:   reason,
		Code:     int32(code), // an HTTP status code
	})
}

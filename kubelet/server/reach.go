// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/api/networking/reach"
	prober "keelson/kubelet/reach"
)

// probe makes one connection from inside a pod. The API server has authorized the caller: it requires the right to exec
// in the pod.
func (s *Server) probe(w http.ResponseWriter, r *http.Request) {
	asked, err := reach.Parse(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p := s.find(w, r)
	if p == nil {
		return
	}
	got, err := s.cfg.Reach.Probe(r.Context(), p, asked)
	reply(w, got, err)
}

// serving reports the rules of this node for a Service.
func (s *Server) serving(w http.ResponseWriter, r *http.Request) {
	namespace := r.PathValue("namespace")
	name := r.PathValue("name")
	if len(validation.IsDNS1123Label(namespace))+len(validation.IsDNS1123Label(name)) > 0 {
		http.Error(w, "neither a namespace nor a service has such a name", http.StatusBadRequest)
		return
	}
	got, err := s.cfg.Reach.Serving(r.Context(), namespace, name)
	reply(w, got, err)
}

func reply(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, prober.ErrBusy):
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}

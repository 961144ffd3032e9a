// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"

	"github.com/rogpeppe/go-internal/testscript"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// startExtender serves an HTTP extender until the script ends, and sets $EXTENDER to its URL. Pods say by their label
// "heat" what becomes of them: fake-0 is too hot for all, and every node for those with "high"; those with "unknown"
// get no answer. Of the others fake-2 is the best.
func startExtender(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: extender")
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var extenderArgs extenderv1.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&extenderArgs); err != nil || extenderArgs.Pod == nil ||
			extenderArgs.NodeNames == nil {
			http.Error(w, "what?", http.StatusBadRequest)
			return
		}
		heat := extenderArgs.Pod.Labels["heat"]
		if heat == "unknown" {
			<-r.Context().Done()
			return
		}
		scores := extenderv1.HostPriorityList{}
		left := []string{}
		failed := extenderv1.FailedNodesMap{}
		for _, n := range *extenderArgs.NodeNames {
			if n == "fake-0" || heat == "high" {
				failed[n] = "too hot"
				continue
			}
			left = append(left, n)
			if n == "fake-2" {
				scores = append(scores, extenderv1.HostPriority{Host: n, Score: 10})
			}
		}
		var answer any = extenderv1.ExtenderFilterResult{NodeNames: &left, FailedNodes: failed}
		if r.URL.Path == "/score" {
			answer = scores
		}
		_ = json.NewEncoder(w).Encode(answer) // who asked may be gone
	}))
	ts.Defer(srv.Close)
	ts.Setenv("EXTENDER", srv.URL)
}

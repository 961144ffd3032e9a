// SPDX-License-Identifier: Apache-2.0

package schedtest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// ExtenderAt serves an extender: what each verb answers to a question.
func ExtenderAt(t *testing.T, verbs map[string]func(ctx context.Context, question *json.Decoder) any) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := verbs[strings.TrimPrefix(r.URL.Path, "/")]
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer(r.Context(), json.NewDecoder(r.Body)))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// RefuseNodes has an extender refuse nodes for a reason.
func RefuseNodes(reasons map[string]string) func(context.Context, *json.Decoder) any {
	return func(_ context.Context, d *json.Decoder) any {
		var args extenderv1.ExtenderArgs
		if err := d.Decode(&args); err != nil {
			return extenderv1.ExtenderFilterResult{Error: err.Error()}
		}
		out := extenderv1.ExtenderFilterResult{Nodes: &corev1.NodeList{}, FailedNodes: extenderv1.FailedNodesMap{}}
		for _, n := range args.Nodes.Items {
			if why, no := reasons[n.Name]; no {
				out.FailedNodes[n.Name] = why
			} else {
				out.Nodes.Items = append(out.Nodes.Items, n)
			}
		}
		return out
	}
}

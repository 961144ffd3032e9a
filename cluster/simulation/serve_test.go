// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"keelson/cluster/clustertest"
	"keelson/cluster/scheduling"
	"keelson/cluster/simulation"
	"keelson/lib/connlimit"
	"keelson/timeline/ask"
)

// deployment is a manifest that leads to a number of pods.
func deployment(replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
`, replicas)
}

// askedOf asks a server alone.
func askedOf(t *testing.T, cfg *rest.Config, question any) (*simulation.Answer, error) {
	t.Helper()
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	body, err := ask.Post(t.Context(), hc, cfg.Host, simulation.Path, question)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	answer := &simulation.Answer{}
	return answer, json.NewDecoder(body).Decode(answer)
}

func codeOf(err error) int32 {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status().Code
	}
	return 0
}

// TestServerSimulates: the server answers as the command does, with the rights of who asks, and refuses what is more
// than one question may have; the command then simulates here.
func TestServerSimulates(t *testing.T) {
	c := clustertest.Start(t, clustertest.Config{Controllers: []string{}, Nodes: 1})
	admin := c.Config
	answer, err := askedOf(t, admin, &simulation.Question{Manifest: deployment(2), Add: "1,cpu=1"})
	if err != nil || answer.Nodes != 2 || len(answer.Outcomes) != 2 || answer.Outcomes[0].Node == "" ||
		answer.Outcomes[0].Decision == nil {
		t.Fatalf("the server answers %+v, %v; want two pods with nodes", answer, err)
	}
	if _, err := askedOf(t, c.As("ann").Config, &simulation.Question{Add: "1"}); codeOf(err) != http.StatusForbidden ||
		!strings.Contains(err.Error(), `User "ann" cannot list`) {
		t.Errorf("a user without rights gets %v, want 403 with the right that is missing", err)
	}
	for want, question := range map[int32][]any{
		http.StatusRequestEntityTooLarge: {
			&simulation.Question{Manifest: deployment(1001)},
			&simulation.Question{Manifest: deployment(1) + strings.Repeat("#", 256<<10)},
		},
		http.StatusBadRequest: {
			&simulation.Question{Drain: []string{"absent"}},
			&simulation.Question{Add: "x"},
			&simulation.Question{Manifest: strings.Replace(deployment(1), "image: i",
				"image: i, resources: {requests: {cpu: 1e8880888}}", 1)},
			"no question",
		},
	} {
		for _, q := range question {
			if _, err := askedOf(t, admin, q); codeOf(err) != want {
				t.Errorf("%.80v: %v, want %d", q, err, want)
			}
		}
	}
	answer, err = simulation.Ask(t.Context(), admin, &simulation.Question{Manifest: deployment(1001)},
		scheduling.Options{})
	if err != nil || len(answer.Outcomes) != 1001 {
		t.Errorf("a large question to the command: %v, want 1001 outcomes", err)
	}
}

// TestServerWithoutQuestions: on a server that does not know the question, the simulation runs in the command.
func TestServerWithoutQuestions(t *testing.T) {
	c := clustertest.Start(t, clustertest.Config{Controllers: []string{}, Nodes: 1})
	cfg := rest.CopyConfig(c.Config)
	asked := 0
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != simulation.Path {
				return next.RoundTrip(r)
			}
			asked++
			w := httptest.NewRecorder()
			http.NotFound(w, r)
			return w.Result(), nil
		})
	})
	answer, err := simulation.Ask(t.Context(), cfg, &simulation.Question{Manifest: deployment(1), Add: "1"},
		scheduling.Options{})
	if err != nil || asked != 1 || len(answer.Outcomes) != 1 || answer.Outcomes[0].Node == "" {
		t.Errorf("got %+v, %v after %d questions; want a pod with a node", answer, err, asked)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestSimulationIsBounded: the server reads no more than a number of bytes for one simulation, and runs one of tenants
// at a time.
func TestSimulationIsBounded(t *testing.T) {
	entered := make(chan struct{}, 10)
	stay := make(chan struct{})
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-stay
		w.Header().Set("Content-Type", "application/json")
		for part := bytes.Repeat([]byte(" "), 1<<20); r.Context().Err() == nil; {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	})
	handler := simulation.Handler(func(r *http.Request) ask.Asker {
		return ask.Asker{Further: endless, Owner: connlimit.Owner{Name: r.Header.Get("User")}}
	})
	post := func(user string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, simulation.Path,
			strings.NewReader(`{"addNodes": "1"}`))
		r.Header.Set("User", user)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	slow, writer := io.Pipe()
	late := make(chan int, 1)
	go func() { // ends when writer is closed
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, simulation.Path, slow)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		late <- w.Code
	}()
	if _, err := writer.Write([]byte("{")); err != nil { // it is read now, and takes no place
		t.Fatal(err)
	}
	first := make(chan int, 1)
	go func() { first <- post("ann") }() // ends when stay is closed
	<-entered
	if code := post("bob"); code != http.StatusTooManyRequests {
		t.Errorf("a second tenant at once gets %d, want 429", code)
	}
	close(stay)
	if code := <-first; code != http.StatusRequestEntityTooLarge {
		t.Errorf("a question that reads without end gets %d, want 413", code)
	}
	if _ = writer.Close(); <-late != http.StatusBadRequest { // Close of a pipe returns no error
		t.Error("half a question is answered, want 400")
	}
}

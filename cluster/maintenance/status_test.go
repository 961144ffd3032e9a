// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/api/networking/wireguard"
	"keelson/apiserver/configreload"
	"keelson/client/clienttest"
)

// TestStatusNamesWhatIsUnhealthy: a cluster whose scheduler does not run says so before a pod waits for it.
func TestStatusNamesWhatIsUnhealthy(t *testing.T) {
	component := func(name string, is corev1.ConditionStatus, message, wrong string) *corev1.ComponentStatus {
		return &corev1.ComponentStatus{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Conditions: []corev1.ComponentCondition{
				{
					Type:    corev1.ComponentHealthy,
					Status:  is,
					Message: message,
					Error:   wrong,
				},
			},
		}
	}
	got := unhealthy(t.Context(), clienttest.New(
		component("controller-manager", corev1.ConditionTrue, "ok", ""),
		component("etcd-0", corev1.ConditionFalse, "", "disk full"),
		component("scheduler", corev1.ConditionUnknown, "nobody holds its lease", ""),
	))
	if want := []string{"etcd-0: disk full", "scheduler: nobody holds its lease"}; !slices.Equal(got, want) {
		t.Errorf("unhealthy: %q, want %q", got, want)
	}
}

// TestProblem: a silent server is reported in words, other errors unchanged.
func TestProblem(t *testing.T) {
	if got := problem(fmt.Errorf("get: %w", context.DeadlineExceeded)); !strings.HasPrefix(got,
		"it has been silent for 5s") {
		t.Errorf("got %q", got)
	}
	if got := problem(errors.New("refused")); got != "refused" {
		t.Errorf("got %q", got)
	}
}

// TestRejectedFiles: a server reports files that are not in use; of one that does not, nothing is said.
func TestRejectedFiles(t *testing.T) {
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	defer srv.Close()
	cs := kubernetes.NewForConfigOrDie(&rest.Config{Host: srv.URL}).Discovery().RESTClient()
	if got := rejectedFiles(t.Context(), cs); got != nil {
		t.Errorf("without the path: %q", got)
	}
	rejected := &configreload.Rejected{}
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	files := configreload.New(slog.New(slog.DiscardHandler), rejected)
	read := make(chan bool, 1)
	files.Watch("scheduler", path, nil, func(context.Context, []byte) error {
		read <- true
		return errors.New("line 1\nline 2")
	})
	if err := os.WriteFile(path, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- files.Part()(ctx, func() {}) }() // ends with ctx
	<-read
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mux.Handle(ConfigurationPath, ServeRejected(rejected))
	if got, want := rejectedFiles(t.Context(), cs), "scheduler "+path+" is not in use: line 1; line 2; the previous "+
		"content stays in use"; len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStatusOfWireGuard(t *testing.T) {
	keyed := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "a",
		Annotations: map[string]string{
			wireguard.AnnotationKey:  "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
			wireguard.AnnotationPort: "51820",
		},
	}}
	plain := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.42.1.0/24"}},
	}
	for want, nodes := range map[string][]corev1.Node{
		"":                       {plain},
		"WireGuard, 1 of 1 node": {keyed},
		"WireGuard, 1 of 2 nodes; without a key, and not reached by those: b": {plain, keyed},
	} {
		if got := wireGuardText(nodes); got != want {
			t.Errorf("status says %q, want %q", got, want)
		}
	}
}

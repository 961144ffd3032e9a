// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/config"
	"keelson/auth/remote"
)

// service says no to images with "bad" in their name, fails for "broken" ones, and counts questions.
func service(t *testing.T) (kubeconfig string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var imageReview imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&imageReview); err != nil || imageReview.Kind != "ImageReview" ||
			imageReview.APIVersion != "imagepolicy.k8s.io/v1alpha1" || imageReview.Spec.Namespace != "dev" {
			t.Errorf("asked %+v, %v", imageReview, err)
		}
		images := fmt.Sprint(imageReview.Spec.Containers, imageReview.Spec.Annotations)
		imageReview.Status.Allowed = !strings.Contains(images, "bad")
		if strings.Contains(images, "reason") {
			imageReview.Status.Reason = "not scanned"
		}
		imageReview.Status.AuditAnnotations = map[string]string{"seen": "yes"}
		if strings.Contains(images, "broken") {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		if err := json.NewEncoder(w).Encode(&imageReview); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "hook.conf")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: h, cluster: {server: %q}}]\ncontexts: "+
		"[{name: h, context: {cluster: h}}]\ncurrent-context: h\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, asked
}

func TestImages(t *testing.T) {
	kubeconfig, asked := service(t)
	for _, c := range []struct {
		what, image, init, ephemeral string
		annotation                   string
		open                         bool
		refused                      string
		notes                        map[string]string
		asked                        int32 // twice the same question
	}{
		{
			what:  "good",
			image: "good",
			notes: map[string]string{"imagepolicywebhook.image-policy.k8s.io/seen": "yes"},
			asked: 1,
		},
		{
			what:    "bad",
			image:   "bad",
			refused: "one or more images rejected by webhook backend",
			asked:   1,
		},
		{
			what:    "bad for a reason",
			image:   "bad-reason",
			refused: "image policy webhook backend denied one or more images: not scanned",
			asked:   1,
		},
		{
			what:    "bad first",
			image:   "good",
			init:    "bad",
			refused: "one or more images rejected",
			asked:   1,
		},
		{
			what:      "bad later",
			image:     "good",
			ephemeral: "bad",
			refused:   "one or more images rejected",
			asked:     1,
		},
		{
			what:       "annotated",
			image:      "good",
			annotation: "bad",
			refused:    "one or more images rejected",
			asked:      1,
		},
		{
			what:    "no answer",
			image:   "broken",
			refused: "Error contacting webhook: 503",
			asked:   2 * remote.Tries,
		},
		{
			what:  "no answer needed",
			image: "broken",
			open:  true,
			notes: map[string]string{"imagepolicywebhook.image-policy.k8s.io/failed-open": "true"},
			asked: 2 * remote.Tries,
		},
	} {
		plugin, err := New(Config{
			KubeConfigFile: kubeconfig,
			AllowTTL:       time.Hour,
			DenyTTL:        time.Hour,
			RetryBackoff:   1,
			DefaultAllow:   c.open,
		}, remote.Via{})
		if err != nil {
			t.Fatal(err)
		}
		asked.Store(0)
		for range 2 {
			notes := map[string]string{}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "dev"},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Image: c.image}},
				},
			}
			req := &admission.Request{
				Operation: admission.Create,
				Resource:  corev1.SchemeGroupVersion.WithResource("pods"),
				Namespace: "dev",
				Name:      "p",
				Object:    pod,
				Annotate:  func(k, v string) { notes[k] = v },
			}
			if c.init != "" {
				pod.Spec.InitContainers = []corev1.Container{{Image: c.init}}
			}
			if c.ephemeral != "" {
				req.Operation = admission.Update
				req.Subresource = "ephemeralcontainers"
				pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
					{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: c.ephemeral}},
				}
			}
			if c.annotation != "" {
				pod.Annotations = map[string]string{"team.image-policy.k8s.io/x": c.annotation, "else": "broken"}
			}
			err := plugin.Validate(t.Context(), req)
			if c.refused == "" && err != nil || c.refused != "" && (!apierrors.IsForbidden(err) ||
				!strings.Contains(err.Error(), c.refused)) {
				t.Errorf("%s: got %v, want %q", c.what, err, c.refused)
			}
			if c.notes != nil && !maps.Equal(notes, c.notes) {
				t.Errorf("%s: noted %v, want %v", c.what, notes, c.notes)
			}
			if got := pod.Annotations["alpha.image-policy.k8s.io/failed-open"]; (got == "true") != c.open {
				t.Errorf("%s: the pod's annotation is %q", c.what, got)
			}
		}
		if got := asked.Load(); got != c.asked {
			t.Errorf("%s: asked %d times, want %d", c.what, got, c.asked)
		}
	}
}

func TestRead(t *testing.T) {
	read := func(text string) (Config, error) {
		b := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: " +
			"ImagePolicyWebhook, configuration: {imagePolicy: " + text + "}}]\n"
		f, err := config.Parse([]byte(b), []string{"ImagePolicyWebhook"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return Read(f.For("ImagePolicyWebhook"))
	}
	for text, want := range map[string]Config{
		"{kubeConfigFile: /k}": {
			KubeConfigFile: "/k",
			AllowTTL:       5 * time.Minute,
			DenyTTL:        30 * time.Second,
			RetryBackoff:   500 * time.Millisecond,
		},
		"{allowTTL: 60, denyTTL: -1, retryBackoff: 7, defaultAllow: true}": {
			AllowTTL:     time.Minute,
			RetryBackoff: 7 * time.Millisecond,
			DefaultAllow: true,
		},
	} {
		got, err := read(text)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, d)
		}
	}
	for _, text := range []string{"{allowTTL: 1801}", "{denyTTL: -2}", "{retryBackoff: 300001}"} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), "valid value is between") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Read(nil); err == nil {
		t.Error("it can be without a document")
	}
}

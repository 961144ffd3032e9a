// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
)

// locked is an image service whose registry example.com/private wants the password "good".
type locked struct {
	runtimeapi.ImageServiceClient
	pulls *[]string
	// crash ends a pull after the image is on the node and before that is recorded.
	crash bool
}

func (l locked) PullImage(
	ctx context.Context, in *runtimeapi.PullImageRequest, opts ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	ref := in.GetImage().GetImage()
	*l.pulls = append(*l.pulls, ref)
	if strings.HasPrefix(ref, "example.com/private") && in.GetAuth().GetPassword() != "good" {
		return nil, status.Errorf(codes.Unauthenticated, "pull image %s: authentication required", ref)
	}
	out, err := l.ImageServiceClient.PullImage(ctx, in, opts...)
	if l.crash {
		panic("crash")
	}
	return out, err
}

func pullSecret(namespace, name, uid, password string) *corev1.Secret {
	auth := base64.StdEncoding.EncodeToString([]byte("user:" + password))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{
			corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{"example.com":{"auth":%q}}}`, auth),
		},
	}
}

// try asks for an image and returns "present", "pulled" or the reason why not.
func try(t *testing.T, m *Manager, pod, image string, policy corev1.PullPolicy, secrets ...*corev1.Secret) string {
	t.Helper()
	out, err := m.Ensure(t.Context(), Request{
		PodUID:  pod,
		Image:   image,
		Policy:  policy,
		Secrets: secrets,
	})
	switch {
	case err != nil:
		return reason(err)
	case out.Present:
		return "present"
	}
	return "pulled"
}

// TestCredentialsOfPresentImages: a pod needs credentials of its own for an image that another pod's secret has pulled.
func TestCredentialsOfPresentImages(t *testing.T) {
	const private = "example.com/private/app:1"
	owner := pullSecret("ta", "pull", "1", "good")
	rotated := pullSecret("ta", "pull", "1", "newer")
	tests := map[string]struct {
		policy  string
		allow   []string
		image   string
		pull    corev1.PullPolicy
		secrets []*corev1.Secret
		want    string
	}{
		"another tenant without a secret": {image: private, want: "ErrImagePull"},
		"another tenant with a wrong secret": {
			image:   private,
			secrets: []*corev1.Secret{pullSecret("tb", "pull", "2", "bad")},
			want:    "ErrImagePull",
		},
		"of the same name elsewhere": {
			image:   private,
			secrets: []*corev1.Secret{pullSecret("tb", "pull", "1", "bad")},
			want:    "ErrImagePull",
		},
		"made again under its name": {
			image:   private,
			secrets: []*corev1.Secret{pullSecret("ta", "pull", "9", "bad")},
			want:    "ErrImagePull",
		},
		"another tenant, policy Never": {image: private, pull: corev1.PullNever, want: "ErrImageNeverPull"},
		"the owner":                    {image: private, secrets: []*corev1.Secret{owner}, want: "present"},
		"the owner, policy Never": {
			image:   private,
			pull:    corev1.PullNever,
			secrets: []*corev1.Secret{owner},
			want:    "present",
		},
		"the owner, who changed the password": {image: private, secrets: []*corev1.Secret{rotated}, want: "present"},
		"another tenant with the same password": {
			image:   private,
			secrets: []*corev1.Secret{pullSecret("tb", "own", "2", "good")},
			want:    "present",
		},
		"by its id":                {image: "ID", want: "ErrImagePull"},
		"by its digest":            {image: "DIGEST", want: "ErrImagePull"},
		"by its digest, the owner": {image: "DIGEST", secrets: []*corev1.Secret{owner}, want: "present"},
		"NeverVerify":              {policy: NeverVerify, image: private, want: "present"},
		"on the list": {
			policy: NeverVerifyAllowlistedImages,
			allow:  []string{"example.com/private/app"},
			image:  private,
			want:   "present",
		},
		"below the list": {
			policy: NeverVerifyAllowlistedImages,
			allow:  []string{"example.com/*"},
			image:  private,
			want:   "present",
		},
		"not on the list": {
			policy: NeverVerifyAllowlistedImages,
			allow:  []string{"example.com/public/*"},
			image:  private,
			want:   "ErrImagePull",
		},
		"preloaded":               {image: "preloaded:1", want: "present"},
		"preloaded, AlwaysVerify": {policy: AlwaysVerify, image: "preloaded:1", want: "pulled"},
		"preloaded, not on the list": {
			policy: NeverVerifyAllowlistedImages,
			image:  "preloaded:1",
			want:   "pulled",
		},
		"of no registry, AlwaysVerify": {policy: AlwaysVerify, image: critest.HelloImage, want: "present"},
		"pulled without a secret":      {image: "example.com/public:1", want: "present"},
		"pulled without a secret, with one": {
			image:   "example.com/public:1",
			secrets: []*corev1.Secret{owner},
			want:    "present",
		},
		"pulled without a secret, AlwaysVerify": {
			policy: AlwaysVerify,
			image:  "example.com/public:1",
			want:   "present",
		},
		"another tenant without a secret, Always": {image: private, pull: corev1.PullAlways, want: "ErrImagePull"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var pulls []string
			svc := locked{ImageServiceClient: cri.InProcess(critest.NewFake()).Image, pulls: &pulls}
			if _, err := svc.ImageServiceClient.PullImage(t.Context(),
				&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "preloaded:1"}}); err != nil {
				t.Fatal(err)
			}
			m := manager(t, svc, func(c *Config) {
				c.VerificationPolicy = tt.policy
				c.VerificationAllowlist = tt.allow
			})
			if got := try(t, m, "a", private, corev1.PullIfNotPresent, owner); got != "pulled" {
				t.Fatalf("the owner's first: %s, want pulled", got)
			}
			if got := try(t, m, "p", "example.com/public:1", corev1.PullIfNotPresent); got != "pulled" {
				t.Fatalf("a public image: %s, want pulled", got)
			}
			img, err := m.inspect(t.Context(), private)
			if err != nil {
				t.Fatal(err)
			}
			image := strings.NewReplacer("ID", img.GetId(), "DIGEST", img.GetRepoDigests()[0]).Replace(tt.image)
			if tt.image == "ID" {
				svc.ImageServiceClient = failing{svc.ImageServiceClient} // no registry has an image of that name
				m.svc = svc
			}
			if tt.pull == "" {
				tt.pull = corev1.PullIfNotPresent
			}
			if got := try(t, m, "b", image, tt.pull, tt.secrets...); got != tt.want {
				t.Errorf("got %s, want %s; pulls %q", got, tt.want, pulls)
			}
		})
	}
}

type failing struct{ runtimeapi.ImageServiceClient }

func (failing) PullImage(
	context.Context, *runtimeapi.PullImageRequest, ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	return nil, status.Error(codes.NotFound, "no such image")
}

// TestVerifiedTenantIsRemembered: a tenant whose own secret has pulled the image is not sent to the registry again.
func TestVerifiedTenantIsRemembered(t *testing.T) {
	var pulls []string
	m := manager(t, locked{ImageServiceClient: cri.InProcess(critest.NewFake()).Image, pulls: &pulls})
	a := pullSecret("ta", "pull", "1", "good")
	b := pullSecret("tb", "pull", "2", "bad")
	const image = "example.com/private/app:1"
	got := []string{
		try(t, m, "a", image, corev1.PullIfNotPresent, a), try(t, m, "b1", image, corev1.PullIfNotPresent, b),
		// the second one's hash is known
		try(t, m, "b2", image, corev1.PullIfNotPresent, b, pullSecret("tb", "other", "3", "good")),
	}
	b.Data = pullSecret("tb", "pull", "2", "good").Data
	got = append(got, try(t, m, "b3", image, corev1.PullIfNotPresent, b))
	if want := []string{"pulled", "ErrImagePull", "present", "present"}; !slices.Equal(got, want) || len(pulls) != 2 {
		t.Errorf("got %q with pulls %q, want %q with two", got, pulls, want)
	}
}

// TestRecords: they are files as Kubernetes has them, private, survive a restart and a crash, and go with their images.
func TestRecords(t *testing.T) {
	var pulls []string
	rt := cri.InProcess(critest.NewFake())
	dir := filepath.Join(t.TempDir(), "image_manager")
	svc := locked{ImageServiceClient: rt.Image, pulls: &pulls}
	restart := func() *Manager {
		t.Helper()
		m := manager(t, svc, func(c *Config) { c.Dir = dir })
		if err := m.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		return m
	}
	owner := pullSecret("ta", "pull", "1", "good")
	const image = "example.com/private/app:1"
	m := restart()
	if got := try(t, m, "a", image, corev1.PullIfNotPresent, owner); got != "pulled" {
		t.Fatal(got)
	}
	files := recordsIn(t, dir)
	if len(files) != 1 {
		t.Fatalf("files %v, want one record", files)
	}
	var rec map[string]any
	for path, b := range files {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v; want 0600", fi.Mode(), err)
		}
		if strings.Contains(string(b), "good") || !strings.Contains(path, "/pulled/sha256-") {
			t.Errorf("%s: %s", path, b)
		}
		if err := json.Unmarshal(b, &rec); err != nil {
			t.Fatal(err)
		}
	}
	// a panic fails the test
	creds := rec["credentialMapping"].(map[string]any)["example.com/private/app"].(map[string]any)["kubernetesSecrets"].([]any)[0].(map[string]any)
	if rec["kind"] != "ImagePulledRecord" || rec["apiVersion"] != "kubelet.config.k8s.io/v1beta1" ||
		creds["namespace"] != "ta" || creds["name"] != "pull" || creds["uid"] != "1" || creds["credentialHash"] == "" {
		t.Errorf("record %v", rec)
	}
	m = restart()
	if got := try(t, m, "b", image, corev1.PullIfNotPresent); got != "ErrImagePull" {
		t.Errorf("another tenant after a restart: %s, want ErrImagePull", got)
	}
	if got := try(t, m, "c", image, corev1.PullIfNotPresent, owner); got != "present" {
		t.Errorf("the owner after a restart: %s, want present", got)
	}
	for path := range files {
		if err := os.WriteFile(path, []byte(`{"kind":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := try(t, restart(), "d", image, corev1.PullIfNotPresent); got != "ErrImagePull" {
		t.Errorf("another tenant with a damaged record: %s, want ErrImagePull", got)
	}
	svc.crash = true
	func() {
		defer func() { _ = recover() }()
		try(t, restart(), "e", "example.com/private/crash:1", corev1.PullIfNotPresent, owner)
	}()
	svc.crash = false
	if got := try(t, restart(), "f", "example.com/private/crash:1", corev1.PullIfNotPresent); got != "ErrImagePull" {
		t.Errorf("another tenant after a crash in the owner's pull: %s, want ErrImagePull", got)
	}
	for _, ref := range []string{image, "example.com/private/crash:1"} {
		if _, err := rt.Image.RemoveImage(t.Context(),
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.records.prune(map[string]bool{}, time.Now().Add(-time.Hour)); err != nil ||
		len(recordsIn(t, dir)) != 2 {
		t.Errorf("%v; records %v, want those that are newer than the list of images", err, recordsIn(t, dir))
	}
	if err := restart().prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if files := recordsIn(t, dir); len(files) > 0 {
		t.Errorf("left after the images: %v", files)
	}
}

func recordsIn(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*/*")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, p := range paths {
		if out[p], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestRepository(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":                      "docker.io/library/busybox",
		"busybox:1":                    "docker.io/library/busybox",
		"a/b@sha256:00":                "docker.io/a/b",
		"localhost:5000/a:1@sha256:00": "localhost:5000/a",
		"reg.example.com/a/b:1":        "reg.example.com/a/b",
		"docker.io/busybox:1":          "docker.io/library/busybox",
	} {
		if got := repository(in); got != want {
			t.Errorf("repository(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestValidatePolicy(t *testing.T) {
	for _, tt := range []struct {
		policy string
		list   []string
		ok     bool
	}{
		{"", nil, true},
		{AlwaysVerify, nil, true},
		{"Sometimes", nil, false},
		{NeverVerify, []string{"a.io/b"}, false},
		{NeverVerifyAllowlistedImages, []string{"a.io/b", "a.io/*"}, true},
		{NeverVerifyAllowlistedImages, []string{"a.io/b:1"}, false},
		{NeverVerifyAllowlistedImages, []string{"*"}, false},
		{NeverVerifyAllowlistedImages, []string{"a.io/*/b"}, false},
	} {
		if err := ValidatePolicy(tt.policy, tt.list); (err == nil) != tt.ok {
			t.Errorf("%s %q: got %v, want ok %v", tt.policy, tt.list, err, tt.ok)
		}
	}
}

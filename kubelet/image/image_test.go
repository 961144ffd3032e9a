// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
)

var anyDigest = "sha256:" + strings.Repeat("0", 64)

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":             "busybox:latest",
		"busybox:1":           "busybox:1",
		"localhost:5000/a/b":  "localhost:5000/a/b:latest",
		"a@sha256:00":         "",
		"a@" + anyDigest:      "a@" + anyDigest,
		"keelson.local/hello": "keelson.local/hello:latest",
		"A:5000/x":            "A:5000/x:latest",
		"Bad":                 "",
		"":                    "",
		"a:":                  "",
		"a//b":                "",
		"a b":                 "",
		"-a":                  "",
		":x":                  "",
	} {
		got, err := Normalize(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Normalize(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{"localhost:5000/a/b@sha256:00", "nginx", "registry.example.com/team/app:v1.2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if out, err := Normalize(s); err == nil {
			if again, err := Normalize(out); err != nil || again != out {
				t.Errorf("Normalize(%q) = %q, and that gives %q, %v", s, out, again, err)
			}
		}
	})
}

func TestCredentials(t *testing.T) {
	json := `{"auths":{"https://index.docker.io/v1/":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("hub:pw")) +
		`"},
		"reg.example.com":{"username":"all","password":"p"},"reg.example.com/team":{"username":"team"},"*.wild.org":{"username":"wild"},
		"127.0.0.1:5000":{"username":"local"}}}`
	secrets := []*corev1.Secret{
		{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(json)}},
		{
			Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{broken")},
		},
		{Type: corev1.SecretTypeOpaque},
	}
	for ref, want := range map[string][]string{
		"busybox:latest":             {"hub"},
		"docker.io/me/x:1":           {"hub"},
		"reg.example.com/x:1":        {"all"},
		"reg.example.com/team/x:1":   {"team", "all"},
		"reg.example.com/teammate:1": {"all"},
		"a.wild.org/x":               {"wild"},
		"a.b.wild.org/x":             nil,
		"127.0.0.1:5000/x":           {"local"},
		"127.0.0.1:5001/x":           nil,
	} {
		var got []string
		for _, a := range Credentials(secrets, ref) {
			got = append(got, a.Auth.GetUsername())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", ref, got, want)
		}
	}
}

// TestCredentialsAreBounded: a secret has room for 10,000 entries that match one image, and each would be a pull.
func TestCredentialsAreBounded(t *testing.T) {
	var entries []string
	for i := range 100 {
		entries = append(entries, fmt.Sprintf(`"reg.example.com/%s":{"username":"u%d"}`, strings.Repeat("a/", i), i))
	}
	text := `{"auths":{` + strings.Join(entries, ",") + `}}`
	secrets := []*corev1.Secret{
		{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)}},
	}
	got := Credentials(secrets, "reg.example.com/"+strings.Repeat("a/", 99)+"x")
	if len(got) != maxCredentials || got[0].Auth.GetUsername() != "u99" {
		t.Errorf("got %d credentials, the first is %q; want the %d most specific, the first is u99", len(got),
			got[0].Auth.GetUsername(), maxCredentials)
	}
}

func reason(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return fmt.Sprint(err)
}

func manager(t *testing.T, svc runtimeapi.ImageServiceClient, change ...func(*Config)) *Manager {
	t.Helper()
	cfg := Config{Service: svc, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPolicies(t *testing.T) {
	tests := map[string]struct {
		image  string
		policy corev1.PullPolicy
		fail   error
		want   string // reason, or "present", "pulled"
	}{
		"there, if not present":         {critest.HelloImage, corev1.PullIfNotPresent, nil, "present"},
		"there, always":                 {"a/there:1", corev1.PullAlways, nil, "pulled"},
		"there, always, of no registry": {critest.HelloImage, corev1.PullAlways, nil, "present"},
		"not there, of no registry": {
			"keelson.local/none", corev1.PullAlways, status.Error(codes.NotFound, "no"), "ErrImagePull",
		},
		"there, never":              {critest.HelloImage, corev1.PullNever, nil, "present"},
		"not there, if not present": {"a/b:1", corev1.PullIfNotPresent, nil, "pulled"},
		"not there, never":          {"a/b:1", corev1.PullNever, nil, "ErrImageNeverPull"},
		"no such image": {
			"a/b:1", corev1.PullIfNotPresent, status.Error(codes.NotFound, "no"), "ErrImagePull",
		},
		"no name at all": {"a/B", corev1.PullIfNotPresent, nil, "InvalidImageName"},
		"a short digest": {"a/b@sha256:abc", corev1.PullIfNotPresent, nil, "InvalidImageName"},
		"a digest with capitals": {
			"a/b@sha256:" + strings.Repeat("A", 64), corev1.PullIfNotPresent, nil, "InvalidImageName",
		},
		"an unknown kind of digest": {
			"a/b@md5:" + strings.Repeat("a", 32), corev1.PullIfNotPresent, nil, "InvalidImageName",
		},
		"a digest": {"a/b@sha256:" + strings.Repeat("a", 64), corev1.PullIfNotPresent, nil, "pulled"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := critest.NewFake()
			if _, err := f.PullImage(t.Context(),
				&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "a/there:1"}}); err != nil {
				t.Fatal(err)
			}
			if tt.fail != nil {
				f.FailNext("PullImage", tt.fail)
			}
			out, err := manager(t, cri.InProcess(f).Image).Ensure(t.Context(), Request{
				PodUID: "u",
				Image:  tt.image,
				Policy: tt.policy,
			})
			got := reason(err)
			if err == nil {
				got = map[bool]string{true: "present", false: "pulled"}[out.Present]
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPullBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := critest.NewFake()
		bad := status.Error(codes.NotFound, "no such image")
		f.FailNext("PullImage", bad, bad, bad)
		m := manager(t, cri.InProcess(f).Image)
		r := Request{PodUID: "u", Image: "a/b:1", Policy: corev1.PullIfNotPresent}
		try := func() string {
			_, err := m.Ensure(t.Context(), r)
			return reason(err)
		}
		var got []string
		for _, wait := range []time.Duration{
			0, time.Second, 10 * time.Second, 15 * time.Second, 6 * time.Second, 41 * time.Second,
		} {
			time.Sleep(wait)
			got = append(got, try())
		}
		want := []string{
			"ErrImagePull", "ImagePullBackOff", "ErrImagePull", "ImagePullBackOff", "ErrImagePull", "<nil>",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestNamespacesShareThePulls: slow pulls of one namespace keep no other from pulling, and its own further ones wait.
func TestNamespacesShareThePulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := critest.NewFake()
		fake.Delay("PullImage", time.Hour)
		m := manager(t, cri.InProcess(fake).Image, func(c *Config) { c.Parallel = 3 })
		ctx, cancel := context.WithCancel(t.Context())
		ensure := func(ctx context.Context, namespace, image string) error {
			box := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: namespace}}
			_, err := m.Ensure(ctx, Request{
				PodUID:  image,
				Image:   image,
				Policy:  corev1.PullAlways,
				Sandbox: box,
			})
			return err
		}
		pulls := func() (n int) {
			for _, c := range fake.Calls() {
				if strings.HasPrefix(c, "PullImage") {
					n++
				}
			}
			return n
		}
		ended := make(chan error, 5)
		for i := range cap(ended) {
			// ends when ctx is cancelled
			go func() { ended <- ensure(ctx, "greedy", fmt.Sprintf("slow/image:%d", i)) }()
		}
		synctest.Wait()
		if got := pulls(); got != 3 {
			t.Errorf("the greedy namespace has %d pulls, want 3", got)
		}
		fake.Delay("PullImage", 0)
		begin := time.Now()
		if err := ensure(t.Context(), "other", "quick/image:1"); err != nil || time.Since(begin) > 0 {
			t.Errorf("another namespace's pull took %v: %v", time.Since(begin), err)
		}
		cancel()
		for range cap(ended) {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: got %v", err)
			}
		}
	})
}

// FuzzCredentials: secrets are untrusted; a credential that matches an image names the image's registry.
func FuzzCredentials(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"aHViOnB3"},"*.wild.org":{"username":"w"}}}`),
		"nginx:1")
	f.Add([]byte(`{"reg.example.com:5000/team":{"username":"a","password":"b"}}`),
		"reg.example.com:5000/team/x@sha256:00")
	f.Add([]byte(`{"auths":{"[a-":{"auth":"!"},"":{}}}`), "a.b/c")
	f.Fuzz(func(t *testing.T, config []byte, ref string) {
		for _, a := range Credentials([]*corev1.Secret{
			{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: config}},
			{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: config}},
		}, ref) {
			if !matchesImage(a.Auth.ServerAddress, ref) {
				t.Errorf("%q for %q: %q", config, ref, a.Auth.ServerAddress)
			}
		}
	})
}

// TestNoFaultOfTheImage: a pull that the runtime did not begin is no failure of the image. It is tried again soon, and
// the event says why.
func TestNoFaultOfTheImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := critest.NewFake()
		none := status.Error(codes.Aborted, "cannot start a helper process: no memory")
		f.FailNext("PullImage", none, none, none)
		m := manager(t, cri.InProcess(f).Image)
		r := Request{PodUID: "u", Image: "a/b:1", Policy: corev1.PullIfNotPresent}
		for range 3 {
			_, err := m.Ensure(t.Context(), r)
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Reason != "ErrImagePull" || !strings.Contains(e.Event, "no memory") ||
				time.Until(e.Retry) != backoffMin {
				t.Fatalf("got %+v", err)
			}
			time.Sleep(time.Until(e.Retry))
		}
		if _, err := m.Ensure(t.Context(), r); err != nil {
			t.Errorf("got %v", err)
		}
	})
}

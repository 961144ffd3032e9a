// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/apitest"
)

// large has one ConfigMap and one Secret of nearly 1 MiB in keys of 64 KiB.
type large struct {
	config *corev1.ConfigMap
	secret *corev1.Secret
}

func newLarge() large {
	l := large{&corev1.ConfigMap{Data: map[string]string{}}, &corev1.Secret{Data: map[string][]byte{}}}
	for i := range 15 {
		key := fmt.Sprintf("K%d", i)
		l.config.Data[key] = strings.Repeat("x", 64<<10)
		l.secret.Data[key] = []byte(l.config.Data[key])
	}
	return l
}

func (l large) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	return l.config, nil
}

func (l large) Secret(context.Context, string, string) (*corev1.Secret, error) { return l.secret, nil }

// allocated returns how many bytes run allocates.
func allocated(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// doubling returns variables of which each is twice the one before.
func doubling(n int) []corev1.EnvVar {
	out := []corev1.EnvVar{{Name: "A0", Value: "0123456789"}}
	for i := range n {
		out = append(out, corev1.EnvVar{Name: fmt.Sprintf("A%d", i+1), Value: fmt.Sprintf("$(A%d)$(A%d)", i, i)})
	}
	return out
}

func repeat[T any](n int, one T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = one
	}
	return out
}

func manyServices(n int) []*corev1.Service {
	ports := make([]corev1.ServicePort, 100)
	for i := range ports {
		ports[i] = corev1.ServicePort{Name: fmt.Sprintf("port-%d", i), Port: int32(i + 1)} // small
	}
	out := make([]*corev1.Service, n)
	for i := range out {
		out[i] = apitest.Service(fmt.Sprintf("ns/service-with-a-name-%d", i), corev1.ServiceSpec{
			ClusterIP: "10.96.0.9",
			Ports:     ports,
		})
	}
	return out
}

// TestReferencesThatMultiply has short specifications that name large objects, or each other, many times. Each
// fails before the bytes exist.
func TestReferencesThatMultiply(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(strings.Repeat("KEY='val'\n", 6000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte(strings.Repeat("KEY='val'\n", 6000)),
		0o600); err != nil {
		t.Fatal(err)
	}
	files := func(paths ...string) []corev1.EnvVar {
		var out []corev1.EnvVar
		for i := range 2000 {
			out = append(out, corev1.EnvVar{
				Name: fmt.Sprintf("F%d", i),
				ValueFrom: &corev1.EnvVarSource{
					FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: paths[i%len(paths)], Key: "KEY"},
				},
			})
		}
		return out
	}
	key := &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "K1"}}
	annotation := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['a']"}}
	for _, tt := range []struct {
		name     string
		c        corev1.Container
		services int
		most     uint64 // bytes
		want     string // part of the error; empty: none
	}{
		{
			name: "variables that double",
			c:    corev1.Container{Env: doubling(30)},
			most: 1 << 20,
			want: "environment variable A14: it has more than 131067 bytes",
		},
		{
			name: "envFrom of one ConfigMap",
			most: 2 << 20,
			want: "more than 4194304 bytes",
			c: corev1.Container{
				EnvFrom: repeat(3000, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{}}),
			},
		},
		{
			name: "envFrom of one Secret",
			most: 8 << 20,
			want: "more than 4194304 bytes",
			c:    corev1.Container{EnvFrom: repeat(3000, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{}})},
		},
		{
			name: "one key of a Secret",
			c:    corev1.Container{Env: repeat(3000, corev1.EnvVar{Name: "S", ValueFrom: key})},
			most: 8 << 20,
			want: "more than 4194304 bytes",
		},
		{
			name: "one annotation",
			c:    corev1.Container{Env: repeat(3000, corev1.EnvVar{Name: "S", ValueFrom: annotation})},
			most: 2 << 20,
			want: "more than 4194304 bytes",
		},
		{
			name: "arguments",
			most: 8 << 20,
			want: "more than 4194304 bytes",
			c:    corev1.Container{Env: doubling(12), Args: repeat(600, "$(A12)")},
		},
		{
			name: "an argument",
			most: 1 << 20,
			want: "args[0]: it has more than 131071 bytes",
			c:    corev1.Container{Env: doubling(12), Args: []string{strings.Repeat("$(A12)", 1000)}},
		},
		{
			name: "a command",
			most: 8 << 20,
			want: "more than 4194304 bytes",
			c:    corev1.Container{Env: doubling(12), Command: repeat(600, "$(A12)")},
		},
		{
			name:     "Services",
			services: 500,
			most:     40 << 20,
			want:     "variables of Services: environment and arguments have more than 4194304 bytes",
		},
		{name: "keys of one file", c: corev1.Container{Env: files("file")}, most: 4 << 20},
		{
			name: "keys of two files in turns",
			c:    corev1.Container{Env: files("file", "other")},
			most: 64 << 20,
			want: "more than 4194304 bytes",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name:        "p",
				Namespace:   "ns",
				Annotations: map[string]string{"a": strings.Repeat("x", 64<<10)},
			}}
			pod.Spec.Containers = []corev1.Container{tt.c}
			src := newLarge()
			services := manyServices(tt.services)
			var err error
			n := allocated(func() {
				room := NewRoom(pod)
				var env map[string]string
				env, err = Env(t.Context(), pod, &pod.Spec.Containers[0], EnvInput{
					Sources:   src,
					Services:  services,
					Room:      room,
					VolumeDir: func(string) string { return dir },
				})
				if err == nil {
					_, err = Container(pod, &pod.Spec.Containers[0], ContainerInput{Env: env, Room: room})
				}
			})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			if n > tt.most {
				t.Errorf("%d bytes were allocated, want at most %d", n, tt.most)
			}
		})
	}
}

// TestContainersShareRoom: a pod with many containers has no more room than one with a few.
func TestContainersShareRoom(t *testing.T) {
	for n, want := range map[int]int{
		1:      4 << 20,
		4:      4 << 20,
		8:      2 << 20,
		10_000: 64 << 10,
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, n)}}
		if got := NewRoom(p).limit; got != want {
			t.Errorf("%d containers: each has %d bytes, want %d", n, got, want)
		}
	}
}

func TestExpandPath(t *testing.T) {
	env := map[string]string{"A": "a", "L": strings.Repeat("x", 1000)}
	room := NewRoom(&corev1.Pod{})
	if got, err := ExpandPath("$(A)/b", env, room); got != "a/b" || err != nil {
		t.Errorf("got %q, %v, want a/b", got, err)
	}
	for expr, want := range map[string]string{
		"$(B)":                       `missing value for "B"`,
		strings.Repeat("$(L)", 5):    "it has more than 4095 bytes",
		strings.Repeat("$(L)", 5000): "it has more than 4095 bytes",
	} {
		if _, err := ExpandPath(expr, env, room); err == nil || !strings.Contains(err.Error(), want) ||
			len(err.Error()) > 300 {
			t.Errorf("ExpandPath(%.20s) = %.300v, want %q", expr, err, want)
		}
	}
	for range 2000 {
		if _, err := ExpandPath("$(L)$(L)$(L)", env, room); err != nil {
			return
		}
	}
	t.Error("2000 paths of 3,000 bytes fit into the container's room")
}

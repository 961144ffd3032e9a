// SPDX-License-Identifier: Apache-2.0

package scheme

import (
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestKnowsTypes(t *testing.T) {
	for _, obj := range []runtime.Object{
		&corev1.Pod{},
		&metav1.Table{},
		&metav1.PartialObjectMetadataList{},
		&metav1.Status{},
		&metav1.APIResourceList{},
	} {
		if _, _, err := Scheme.ObjectKinds(obj); err != nil {
			t.Errorf("%T: %v", obj, err)
		}
	}
}

func TestStrictReportsUnknownFields(t *testing.T) {
	const in = `{"apiVersion":"v1","kind":"Pod","spec":{"nodename":"x"}}`
	_, _, err := Strict.UniversalDeserializer().Decode([]byte(in), nil, nil)
	if !runtime.IsStrictDecodingError(err) {
		t.Errorf("strict: got %v, want a strict decoding error", err)
	}
	if _, _, err := Codecs.UniversalDeserializer().Decode([]byte(in), nil, nil); err != nil {
		t.Errorf("lenient: %v", err)
	}
}

func TestQueries(t *testing.T) {
	seconds := int64(5)
	tail := int64(0)
	since := metav1.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC)
	tests := []struct {
		query string
		into  runtime.Object
		want  runtime.Object
		fails bool
	}{
		{"follow&container=a&sinceSeconds=5&tailLines=0", &corev1.PodLogOptions{}, &corev1.PodLogOptions{
			Follow:       true,
			Container:    "a",
			SinceSeconds: &seconds,
			TailLines:    &tail,
		}, false},
		{
			"follow=0&previous=FALSE&timestamps=1", &corev1.PodLogOptions{}, &corev1.PodLogOptions{Timestamps: true},
			false,
		},
		{
			"sinceTime=2026-07-01T10:00:00Z&limitBytes=", &corev1.PodLogOptions{}, &corev1.PodLogOptions{
				SinceTime: &since,
			}, false,
		},
		{"tailLines=ten", &corev1.PodLogOptions{}, nil, true},
		{"command=sh&command=-c&tty=true", &corev1.PodExecOptions{}, &corev1.PodExecOptions{
			Command: []string{"sh", "-c"},
			TTY:     true,
		}, false},
		{
			"ports=80&ports=443", &corev1.PodPortForwardOptions{}, &corev1.PodPortForwardOptions{
				Ports: []int32{80, 443},
			}, false,
		},
		{"path=/metrics", &corev1.NodeProxyOptions{}, &corev1.NodeProxyOptions{Path: "/metrics"}, false},
	}
	for _, tt := range tests {
		q, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		err = ParameterCodec.DecodeParameters(q, corev1.SchemeGroupVersion, tt.into)
		if (err != nil) != tt.fails {
			t.Errorf("%s: error %v, want failure %v", tt.query, err, tt.fails)
			continue
		}
		if tt.fails {
			continue
		}
		// The codec may fill in the kind, which does not matter.
		tt.into.GetObjectKind().SetGroupVersionKind(tt.want.GetObjectKind().GroupVersionKind())
		if d := cmp.Diff(tt.want, tt.into); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.query, d)
		}
	}
}

func FuzzQueries(f *testing.F) {
	f.Add("follow=1&sinceTime=x&tailLines=-9")
	f.Add("container=c&previous=true&sinceSeconds=60&limitBytes=1000&timestamps=false")
	f.Add("ports=80&ports=x,81&ports=")
	f.Fuzz(func(_ *testing.T, raw string) {
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		_ = ParameterCodec.DecodeParameters(q, corev1.SchemeGroupVersion, &corev1.PodLogOptions{})
		_ = ParameterCodec.DecodeParameters(q, corev1.SchemeGroupVersion, &corev1.PodPortForwardOptions{})
	})
}

// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/client/clienttest"
	"keelson/simulate"
)

// TestSilence: a fake node stops and starts; a machine does neither from here.
func TestSilence(t *testing.T) {
	node := func(name, provider string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: provider}}
	}
	cl := clienttest.New(node("fake-0", "fake://fake-0"), node("real", ""))
	for _, step := range []struct {
		last time.Duration
		want string
	}{{5 * time.Second, "5s"}, {0, ""}} {
		if err := silence(t.Context(), cl, "fake-0", step.last); err != nil {
			t.Fatal(err)
		}
		n, err := cl.CoreV1().Nodes().Get(t.Context(), "fake-0", metav1.GetOptions{})
		if err != nil || n.Annotations[simulate.AnnotationSilent] != step.want {
			t.Errorf("for %v: got %q, %v, want %q", step.last, n.Annotations[simulate.AnnotationSilent], err, step.want)
		}
	}
	for name, want := range map[string]string{
		"real": "is a machine and not simulated",
		"none": `there is no node "none"`,
	} {
		if err := silence(t.Context(), cl, name, time.Second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

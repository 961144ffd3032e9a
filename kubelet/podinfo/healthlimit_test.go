// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// statuses are those of containers with one resource each, of n devices. The last device of each is ill, and all have a
// message.
func statuses(containers, n int, message string) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for range containers {
		resourceStatus := corev1.ResourceStatus{Name: "claim:c"}
		for i := range n {
			h := corev1.ResourceHealth{
				ResourceID: corev1.ResourceID(fmt.Sprintf("%04d", i)),
				Health:     well,
				Message:    &message,
			}
			if i == n-1 {
				h.Health = ill
			}
			resourceStatus.Resources = append(resourceStatus.Resources, h)
		}
		out = append(out, corev1.ContainerStatus{AllocatedResourcesStatus: []corev1.ResourceStatus{resourceStatus}})
	}
	return out
}

// TestLimitHealth: what fits stays as it is; messages are shortened before devices are left out, and those that are ill
// are left out last.
func TestLimitHealth(t *testing.T) {
	fits := statuses(2, 100, strings.Repeat("m", 1024))
	LimitHealth(fits)
	if diff := cmp.Diff(statuses(2, 100, strings.Repeat("m", 1024)), fits); diff != "" {
		t.Errorf("what fits (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		name          string
		containers, n int
		message       string
		wantMessage   string
		wantDevices   int // of the first container
	}{
		{"one size too long", 4, 256, strings.Repeat("m", 1024), strings.Repeat("m", 125) + "...", 256},
		{"escaped", 4, 256, strings.Repeat("<\n", 512), strings.Repeat("<\n", 10) + "...", 256},
		{"too many devices", 20, 256, strings.Repeat("é", 512), strings.Repeat("é", 30) + "...", 109},
		{"too many devices that are ill", 5000, 1, "short", "short", 1},
	} {
		list := statuses(tt.containers, tt.n, tt.message)
		LimitHealth(list)
		size := 0
		named := 0
		for i := range list {
			for _, r := range list[i].AllocatedResourcesStatus {
				b, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				size += len(b) + 1
				if last := r.Resources[len(r.Resources)-1]; last.Health == ill {
					named++
				}
				if got := *r.Resources[0].Message; got != tt.wantMessage {
					t.Errorf("%s: message %q, want %q", tt.name, got, tt.wantMessage)
				}
			}
		}
		if got := len(list[0].AllocatedResourcesStatus[0].Resources); got != tt.wantDevices {
			t.Errorf("%s: %d devices, want %d", tt.name, got, tt.wantDevices)
		}
		if size > maxPodHealth || size < maxPodHealth/3 {
			t.Errorf("%s: %d bytes, want no more than %d, and not much less", tt.name, size, maxPodHealth)
		}
		if tt.containers <= 20 && named != tt.containers {
			t.Errorf("%s: %d containers report the device that is ill, want %d", tt.name, named, tt.containers)
		}
	}
}

// TestJSONSize: no text takes more in JSON than is reckoned.
func TestJSONSize(t *testing.T) {
	var all strings.Builder
	for r := range rune(0x3000) {
		all.WriteRune(r)
	}
	all.WriteString("\ufffd\xff\U0001f600")
	for _, r := range all.String() {
		b, err := json.Marshal(string(r))
		if err != nil || len(b)-2 > jsonSize(string(r)) {
			t.Errorf("%q takes %d bytes, reckoned with %d, %v", r, len(b)-2, jsonSize(string(r)), err)
		}
	}
	if got := shorten("abcdefgh", 6); got != "abc..." {
		t.Errorf("shortened to %q", got)
	}
}

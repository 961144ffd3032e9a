// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/csi"
	"keelson/kubelet/volume"
)

// TestAttachLimitEndsThePod: a pod fails, as one that the node rejected, when the node can attach no more volumes.
// Other errors of volumes are tried again.
func TestAttachLimitEndsThePod(t *testing.T) {
	limit := &csi.Error{Err: &csi.LimitError{Volume: "data"}}
	other := &volume.Error{Volume: "other", Err: errors.New("broken")}
	end := volumesEnd(errors.Join(other, &volume.Error{Volume: "data", Err: fmt.Errorf("set up: %w", limit)}))
	if end == nil || !end.Rejected || end.Phase != corev1.PodFailed || end.Reason != "VolumeAttachmentLimitExceeded" ||
		!strings.HasPrefix(end.Message, "Pod was rejected: Node has reached its volume attachment limit") {
		t.Errorf("the end of a pod whose volume cannot be attached: %+v", end)
	}
	if end := volumesEnd(other); end != nil {
		t.Errorf("the end of a pod whose volume is broken: %+v", end)
	}
}

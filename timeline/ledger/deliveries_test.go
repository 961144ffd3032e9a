// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"testing"

	"keelson/timeline/storytest"
)

// TestDeliveriesAreBounded: of a pod the first events are kept, of an owner the last, since they lead to the newest
// pods.
func TestDeliveriesAreBounded(t *testing.T) {
	tl := New(Config{})
	for i := range 10 * keepDeliveries {
		tl.Listen(storytest.Delivered(i, 1, pod, "MODIFIED", int64(i), "system:kube-scheduler", "pods"))
		tl.Listen(storytest.Delivered(i, 1, set, "MODIFIED", int64(i), fmt.Sprintf("system:serviceaccount:a:%d", i), "replicasets"))
	}
	of := tl.pods.of(pod.UID)
	owner := tl.owners.of(set.UID)
	newest := int64(0)
	for _, d := range owner.list {
		newest = max(newest, d.revision)
	}
	if len(of.list) != keepDeliveries || of.list[0].revision != 0 || of.left != 9*keepDeliveries ||
		len(owner.list) != keepDeliveries || newest != 10*keepDeliveries-1 {
		t.Errorf("got %d of the pod from revision %d (%d left out), %d of the owner to %d", len(of.list),
			of.list[0].revision, of.left, len(owner.list), newest)
	}
}

// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// writtenBy makes each write of the record unlike any other: of servers that allocate one port at the same time, only
// one must find its bytes in the store (docs/decisions/0175).
const writtenBy = "keelson.dev/written-by"

// rangeRegistry stores the RangeAllocation of node ports for servers that share a store.
type rangeRegistry struct{ storage objects.Storage }

var errUnchanged = errors.New("nothing to write")

func (r rangeRegistry) GuaranteedUpdate(
	ctx context.Context, f func(now *corev1.RangeAllocation) (*corev1.RangeAllocation, error),
) error {
	_, _, _, err := r.storage.Update(ctx, "", "servicenodeports", true, objects.Replace(func(
		_ context.Context, current kind.Object,
	) (kind.Object, error) {
		now, ok := current.(*corev1.RangeAllocation)
		if current != nil && !ok {
			return nil, fmt.Errorf("the RangeAllocation of node ports is a %T", current)
		}
		next, err := f(now)
		if err != nil {
			return nil, err
		}
		if next == now || now != nil && next.Range == now.Range && bytes.Equal(next.Data, now.Data) {
			return nil, errUnchanged
		}
		next.Annotations = map[string]string{writtenBy: string(uuid.NewUUID())}
		return next, nil
	}))
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

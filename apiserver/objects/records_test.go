// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"testing"

	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/store"
)

func TestRecords(t *testing.T) {
	objectstest.RunRecords(t, func(_ *testing.T, c objects.Config, s store.Store) objectstest.Records {
		return objects.New(c, s)
	})
}

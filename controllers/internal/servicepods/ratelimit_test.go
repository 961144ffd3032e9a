// SPDX-License-Identifier: Apache-2.0

package servicepods

import (
	"testing"
	"testing/synctest"
	"time"

	"keelson/controllers/framework"
)

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rateLimit := RateLimit{Rest: 4}
		namespacedName := framework.Key{Name: "a"}
		b := framework.Key{Name: "b"}
		check := func(when string, key framework.Key, want time.Duration) {
			t.Helper()
			if got := rateLimit.Delay(key); got != want {
				t.Errorf("%s: %s waits %s, want %s", when, key, got, want)
			}
		}
		check("at first", namespacedName, 0)
		rateLimit.Record(namespacedName, time.Millisecond)
		check("after a short pass", namespacedName, 0)
		rateLimit.Record(namespacedName, 20*time.Millisecond)
		check("after a long pass", namespacedName, 80*time.Millisecond)
		check("after another one's", b, 0)
		time.Sleep(50 * time.Millisecond)
		check("a little later", namespacedName, 30*time.Millisecond)
		time.Sleep(30 * time.Millisecond)
		check("then", namespacedName, 0)
		rateLimit.Record(namespacedName, time.Hour)
		check("after a very long pass", namespacedName, time.Second)
		rateLimit.Forget(namespacedName)
		check("gone", namespacedName, 0)
		if len(rateLimit.notBefore) > 0 {
			t.Errorf("%d services are remembered", len(rateLimit.notBefore))
		}
	})
}

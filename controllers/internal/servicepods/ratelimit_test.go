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
		p := RateLimit{Rest: 4}
		a := framework.Key{Name: "a"}
		b := framework.Key{Name: "b"}
		check := func(when string, key framework.Key, want time.Duration) {
			t.Helper()
			if got := p.Delay(key); got != want {
				t.Errorf("%s: %s waits %s, want %s", when, key, got, want)
			}
		}
		check("at first", a, 0)
		p.Record(a, time.Millisecond)
		check("after a short pass", a, 0)
		p.Record(a, 20*time.Millisecond)
		check("after a long pass", a, 80*time.Millisecond)
		check("after another one's", b, 0)
		time.Sleep(50 * time.Millisecond)
		check("a little later", a, 30*time.Millisecond)
		time.Sleep(30 * time.Millisecond)
		check("then", a, 0)
		p.Record(a, time.Hour)
		check("after a very long pass", a, time.Second)
		p.Forget(a)
		check("gone", a, 0)
		if len(p.notBefore) > 0 {
			t.Errorf("%d services are remembered", len(p.notBefore))
		}
	})
}

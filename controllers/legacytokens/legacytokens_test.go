// SPDX-License-Identifier: Apache-2.0

package legacytokens

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func secret(name string, age time.Duration, labels map[string]string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "dev",
			Name:              name,
			CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
			Labels:            labels,
			Annotations: map[string]string{
				corev1.ServiceAccountNameKey: "robot",
				corev1.ServiceAccountUIDKey:  "u",
			},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	}
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

func TestJudge(t *testing.T) {
	now := time.Now().UTC()
	on := func(label string, ago time.Duration) map[string]string {
		return map[string]string{label: now.Add(-ago).Format(time.DateOnly)}
	}
	for name, c := range map[string]struct {
		s    *corev1.Secret
		want secretAction
	}{
		"new":                        {secret("s", year-day, nil), keep},
		"old, never used":            {secret("s", year+day, nil), invalidate},
		"old, used lately":           {secret("s", 2*year, on(lastUsed, 10*day)), keep},
		"old, used long ago":         {secret("s", 2*year, on(lastUsed, year+day)), invalidate},
		"old, used on no day":        {secret("s", 2*year, map[string]string{lastUsed: "often"}), keep},
		"invalid for a while":        {secret("s", 3*year, on(invalidSince, 10*day)), keep},
		"invalid for a year":         {secret("s", 3*year, on(invalidSince, year+day)), remove},
		"invalid since no day known": {secret("s", 3*year, map[string]string{invalidSince: "x"}), invalidate},
	} {
		if got := decide(c.s, now, year); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestTwoYears: an unused token is marked after a year, and deleted after two; the others are unchanged.
func TestTwoYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "robot", UID: "u"}}
		for _, n := range []string{"unused", "mounted"} {
			account.Secrets = append(account.Secrets, corev1.ObjectReference{Name: n})
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mounted"}},
			}}},
		}
		other := secret("opaque", 9*year, nil)
		other.Type = corev1.SecretTypeOpaque
		cluster := controllertest.New(
			account, pod, secret("unused", 9*year, nil), secret("mounted", 9*year, nil), secret("by-hand", 9*year,
				nil), other,
			&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: tracking},
				Data:       map[string]string{"since": time.Now().UTC().Format(time.DateOnly)},
			},
		)
		cluster.Start(t, "legacy-service-account-token-cleaner", func(
			env *framework.Env,
		) (framework.Controller, error) {
			return New(env, cluster.Interface, 0)
		})
		check := func(when string, want ...string) {
			t.Helper()
			all, err := cluster.CoreV1().Secrets("dev").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range all.Items {
				if s.Labels[invalidSince] != "" {
					s.Name += "!"
				}
				got = append(got, s.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		time.Sleep(year - 2*day)
		check("before a year", "by-hand", "mounted", "opaque", "unused")
		time.Sleep(4 * day)
		check("after a year", "by-hand", "mounted", "opaque", "unused!")
		time.Sleep(year - 4*day)
		check("before two", "by-hand", "mounted", "opaque", "unused!")
		time.Sleep(8 * day)
		check("after two", "by-hand", "mounted", "opaque")
	})
}

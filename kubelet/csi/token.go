// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tokensKey is the key of the requested tokens in the volume context.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// tokens caches tokens until most of their lifetime has passed, so that republishing every minute requests few.
type tokens struct {
	objects Objects

	mu sync.Mutex
	of map[string]map[string]token // pod's uid -> audience
}

// token is a token in the JSON that drivers read.
type token struct {
	Token   string      `json:"token"`
	Expires metav1.Time `json:"expirationTimestamp"`
	renew   time.Time
	seconds int64
}

const hour = int64(3600)

// all returns the service account tokens that the driver requests, as JSON; empty: it requests none.
func (t *tokens) all(ctx context.Context, j *job) (string, error) {
	if j.object == nil || len(j.object.Spec.TokenRequests) == 0 {
		return "", nil
	}
	out := map[string]token{}
	for _, r := range j.object.Spec.TokenRequests {
		seconds := hour
		if r.ExpirationSeconds != nil {
			seconds = *r.ExpirationSeconds
		}
		one, err := t.one(ctx, j, r.Audience, seconds)
		if err != nil {
			return "", fmt.Errorf("fetch a token of service account %s/%s: %w", j.Pod.Namespace,
				j.Pod.Spec.ServiceAccountName, err)
		}
		out[r.Audience] = one
	}
	b, err := json.Marshal(out)
	return string(b), err
}

// one returns the token for an audience.
func (t *tokens) one(ctx context.Context, j *job, audience string, seconds int64) (token, error) {
	t.mu.Lock()
	cached, ok := t.of[j.uid][audience]
	t.mu.Unlock()
	if ok && cached.seconds == seconds && time.Now().Before(cached.renew) {
		return cached, nil
	}
	req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef: &authv1.BoundObjectReference{
			APIVersion: "v1",
			Kind:       "Pod",
			Name:       j.Pod.Name,
			UID:        j.Pod.UID,
		},
	}}
	if audience != "" {
		req.Spec.Audiences = []string{audience}
	}
	now := time.Now().Round(0) // the wall clock, by which tokens expire also while the machine is suspended
	got, err := t.objects.Token(ctx, j.Pod.Namespace, j.Pod.Spec.ServiceAccountName, req)
	if err != nil {
		return token{}, err
	}
	made := token{Token: got.Status.Token, Expires: got.Status.ExpirationTimestamp, seconds: seconds}
	life := made.Expires.Sub(now)
	if most := time.Duration(seconds) * time.Second; life <= 0 || life > most { // the server's clock shows another time
		life = most
	}
	made.renew = now.Add(life * 8 / 10)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[j.uid] == nil {
		t.of[j.uid] = map[string]token{}
	}
	t.of[j.uid][audience] = made
	return made, nil
}

func (t *tokens) forget(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, uid)
}

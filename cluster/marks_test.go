// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/auth"
	"keelson/event"
)

// TestNodesCannotForgeTimelines: over HTTPS, with real credentials, a node's marks of another node's pod change
// nothing; strangers send none.
func TestNodesCannotForgeTimelines(t *testing.T) {
	cluster, admin := serve(t, func(*Config) {})
	pods := map[string]*corev1.Pod{}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, node := range map[string]string{"mine": "one", "theirs": "two"} {
		p, err := admin.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pods[name] = p
	}
	send := func(cfg *rest.Config, name string) int {
		hc, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer hc.CloseIdleConnections()
		b, err := json.Marshal(event.Event{
			Step:      event.StepSeen,
			Component: "kubelet one",
			At:        time.Now(),
			Detail:    &event.Seen{Source: "api"},
			Subject: event.Subject{
				Resource:  "pods",
				Namespace: "default",
				Name:      name,
				UID:       string(pods[name].UID),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, cfg.Host+"/keelson/v1/marks",
			bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	soon(t, "both pods in the server's cache, by which it knows whose they are", func() (bool, error) {
		list, err := admin.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && len(list.Items) == len(pods), err
	})
	node := cluster.clientOf(t, "system:node:one", auth.Nodes)
	for _, name := range []string{"mine", "theirs"} {
		if code := send(node, name); code != http.StatusNoContent {
			t.Errorf("marks of %s: %d, want 204", name, code)
		}
	}
	if code := send(cluster.clientOf(t, "mallory"), "mine"); code != http.StatusForbidden {
		t.Errorf("marks of a stranger: %d, want 403", code)
	}
	for name, want := range map[string]bool{"mine": true, "theirs": false} {
		code, body := httpGet(t, cluster.clientOf(t, "root", auth.Masters), "/keelson/v1/timeline/default/"+name)
		if code != http.StatusOK || strings.Contains(body, `"reportedBy":"one"`) != want {
			t.Errorf("story of %s: %d %s, want the node's word in it: %v", name, code, body, want)
		}
	}
	for _, path := range []string{
		"timeline/default/mine", "timeline/default/mine?follow=true", "why/default/mine", "backup",
	} {
		for _, cfg := range []*rest.Config{
			node, cluster.clientOf(t, "mallory"), {
				Host:            cluster.URL(),
				TLSClientConfig: rest.TLSClientConfig{CAData: cluster.keys.CA.CertPEM()},
			},
		} {
			if code, body := httpGet(t, cfg, "/keelson/v1/"+path); code != http.StatusForbidden &&
				code != http.StatusUnauthorized {
				t.Errorf("/keelson/v1/%s: %d %s, want 401 or 403", path, code, body)
			}
		}
	}
}

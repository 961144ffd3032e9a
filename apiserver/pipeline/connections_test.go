// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// TestIdleConnections: connections that say nothing take no more descriptors than the server has set aside for them. A
// client that has shown who it is keeps its connection, and a health check always finds a place.
func TestIdleConnections(t *testing.T) {
	const most = 20
	running := servertest.Start(t, func(c *servertest.Setup) { c.Limits.Connections = most })
	known := raw(t, running)
	get := func() {
		t.Helper()
		says(t, known, "GET /api/v1/namespaces HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(known), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("a client that is known: %v %v", resp, err)
		}
		_ = resp.Body.Close()
	}
	get()
	host := strings.TrimPrefix(running.Rest.Host, "https://")
	var idle []net.Conn
	for range 5 * most {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		idle = append(idle, c)
	}
	get()
	stranger := rest.AnonymousClientConfig(running.Rest)
	client, err := rest.HTTPClientFor(stranger)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, running.Rest.Host+"/livez", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("a health check found no place: %v", err)
	}
	_ = resp.Body.Close()
	open := 0
	for _, c := range idle {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && strings.Contains(err.Error(), "timeout") {
			open++
		}
	}
	if open > most {
		t.Errorf("%d connections are open, and may be %d", open, most)
	}
	if got := running.Gauge(t, "keelson_apiserver_connections_limit"); got != "20" {
		t.Errorf("the limit in the metrics is %q", got)
	}
}

// TestConnectionsOfOneTenant: the service accounts of a namespace share half of the places. What they open beyond that
// is surplus.
func TestConnectionsOfOneTenant(t *testing.T) {
	const most = 20
	running := servertest.StartSecured(t, nil, func(c *servertest.Setup) { c.Limits.Connections = most })
	for i := range most - 4 {
		account := corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("a%d", i%2)}}
		accounts := running.Clients(t).CoreV1().ServiceAccounts("default")
		if _, err := accounts.Create(t.Context(), &account, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		token, err := accounts.CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stranger := *running
		stranger.Rest = running.WithToken(token.Status.Token)
		conn := raw(t, &stranger)
		says(t, conn, "GET /version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token.Status.Token+"\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("connection %d of the tenant: %v %v", i, resp, err)
		}
		_ = resp.Body.Close()
	}
	if got := running.Gauge(t, `keelson_apiserver_connections{state="surplus"}`); got != "6" {
		t.Errorf("%s of 16 connections of one namespace's accounts are surplus, want 6", got)
	}
}

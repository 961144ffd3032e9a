// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/client/writetest"
)

func inProcess(t *testing.T, h http.Handler) client.Interface {
	t.Helper()
	c, err := client.InProcess(h, nil, "agent/1")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPodWrites(t *testing.T) {
	for name, impl := range map[string]writetest.Implementation{
		"in process": {New: inProcess, InProcess: true},
		"plain": {New: func(t *testing.T, h http.Handler) client.Interface {
			t.Helper()
			return client.Plain(inProcess(t, h))
		}},
		"remote": {New: func(t *testing.T, h http.Handler) client.Interface {
			t.Helper()
			server := httptest.NewUnstartedServer(h)
			server.Config.ErrorLog = log.New(io.Discard, "", 0) // handlers of the suite panic
			server.Start()
			t.Cleanup(server.Close)
			c, err := client.Remote(&rest.Config{Host: server.URL}, "agent/1")
			if err != nil {
				t.Fatal(err)
			}
			return c
		}},
	} {
		t.Run(name, func(t *testing.T) { writetest.Run(t, impl) })
	}
}

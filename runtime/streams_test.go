// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
)

// TestStreamsAreNotInTheClear: the addresses of streams are no port of the node, or one with TLS where another process
// is to use it.
func TestStreamsAreNotInTheClear(t *testing.T) {
	for name, tcp := range map[string]bool{"in process": false, "for other processes": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.stop()
			n.cfg.StreamTCP = tcp
			n.start()
			box := &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{
					Name:      "p",
					Namespace: "ns",
					Uid:       "u",
				},
				LogDirectory: t.TempDir(),
			}
			sb, err := n.c.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
			if err != nil {
				t.Fatal(err)
			}
			c, err := n.c.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
				PodSandboxId:  sb.GetPodSandboxId(),
				SandboxConfig: box,
				Config: &runtimeapi.ContainerConfig{
					Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
					Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
					Command:  []string{"/hello", "sleep", "1000"},
					LogPath:  "c.log",
				},
			})
			if err == nil {
				_, err = n.c.Runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{
					ContainerId: c.GetContainerId(),
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			resp, err := n.c.Runtime.Exec(t.Context(), &runtimeapi.ExecRequest{
				ContainerId: c.GetContainerId(),
				Cmd:         []string{"/hello"},
				Stdout:      true,
			})
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(resp.GetUrl())
			if err != nil {
				t.Fatal(err)
			}
			// as clients of CRI do
			tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			if tcp {
				if u.Scheme != "https" || u.Port() == "" {
					t.Errorf("address %s, want https at a port", u)
				}
			} else {
				if u.Scheme != "http" || u.Port() != "" {
					t.Errorf("address %s, want none with a port", u)
				}
				tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
					return n.r.DialStreams(ctx)
				}
			}
			u.Path = "/exec/guessed"
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u.String(), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := (&http.Client{Transport: tr}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusNotFound {
				t.Errorf("a guessed address: %s, want 404", answer.Status)
			}
		})
	}
}

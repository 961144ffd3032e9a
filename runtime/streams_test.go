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
			node := newNode(t)
			node.stop()
			node.cfg.StreamTCP = tcp
			node.start()
			box := &runtimeapi.PodSandboxConfig{
				Metadata: &runtimeapi.PodSandboxMetadata{
					Name:      "p",
					Namespace: "ns",
					Uid:       "u",
				},
				LogDirectory: t.TempDir(),
			}
			sb, err := node.c.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
			if err != nil {
				t.Fatal(err)
			}
			response, err := node.c.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
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
				_, err = node.c.Runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{
					ContainerId: response.GetContainerId(),
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			resp, err := node.c.Runtime.Exec(t.Context(), &runtimeapi.ExecRequest{
				ContainerId: response.GetContainerId(),
				Cmd:         []string{"/hello"},
				Stdout:      true,
			})
			if err != nil {
				t.Fatal(err)
			}
			target, err := url.Parse(resp.GetUrl())
			if err != nil {
				t.Fatal(err)
			}
			// as clients of CRI do
			tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			if tcp {
				if target.Scheme != "https" || target.Port() == "" {
					t.Errorf("address %s, want https at a port", target)
				}
			} else {
				if target.Scheme != "http" || target.Port() != "" {
					t.Errorf("address %s, want none with a port", target)
				}
				tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
					return node.r.DialStreams(ctx)
				}
			}
			target.Path = "/exec/guessed"
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target.String(), http.NoBody)
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

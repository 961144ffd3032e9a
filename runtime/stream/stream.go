// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"log/slog"
	"net/url"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/sealed"
	"keelson/runtime/shim"
)

// Service makes and serves streams.
type Service struct {
	table *pods.Table
	specs *sealed.Specs
	shim  *shim.Client
	tcp   bool
	log   *slog.Logger

	urls streaming.Server
	base *url.URL // of the URLs; Serve sets the host
	pair *pairListener
}

// New makes a Service. With tcp it also serves streams on a loopback port with TLS, for clients in other processes;
// otherwise only Dial reaches them. It listens to nothing before Serve.
func New(table *pods.Table, specs *sealed.Specs, client *shim.Client, tcp bool, log *slog.Logger) (*Service, error) {
	s := &Service{
		table: table,
		specs: specs,
		shim:  client,
		tcp:   tcp,
		log:   log,
		base:  &url.URL{},
		pair:  newPairListener(),
	}
	cfg := streaming.DefaultConfig
	cfg.BaseURL = s.base
	var err error
	if s.urls, err = streaming.NewServer(cfg, ends{s}); err != nil {
		return nil, fmt.Errorf("make streaming server: %w", err)
	}
	return s, nil
}

// Exec returns a URL, valid once, for the streams of an interactive exec.
func (s *Service) Exec(r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, _, err := s.process(r.GetContainerId(), r.GetCmd(), r.GetTty()); err != nil {
		return nil, err
	}
	return s.urls.GetExec(r)
}

// Attach returns a URL, valid once, for the streams of a running container.
func (s *Service) Attach(r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	c, err := s.table.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if rec := c.Record(); !rec.Running() {
		return nil, fault.FailedPrecondition("attach to container %s: it is in state %s", c.ID, rec.State())
	}
	return s.urls.GetAttach(r)
}

// PortForward returns a URL, valid once, for connections to the pod's ports.
func (s *Service) PortForward(r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	sb, err := s.table.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !sb.Record().Ready {
		return nil, fault.FailedPrecondition("port-forward to pod sandbox %s: it is not ready", sb.ID)
	}
	return s.urls.GetPortForward(r)
}

// ends implements streaming.Runtime: it connects the client's ends of a URL's streams with those of the container.
type ends struct{ s *Service }

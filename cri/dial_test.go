// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
)

func TestDialRefuses(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://127.0.0.1:1", "relative.sock"} {
		if _, err := cri.Dial(t.Context(), endpoint); err == nil || !strings.Contains(err.Error(), "absolute path") {
			t.Errorf("dial %q: got %v, want a sentence about the path", endpoint, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	sock := filepath.Join(t.TempDir(), "nobody")
	if _, err := cri.Dial(ctx, "unix://"+sock); err == nil || !strings.Contains(err.Error(), sock) {
		t.Errorf("dial a socket nobody serves: got %v, want its name", err)
	}
}

func TestServeRefusesASocketInUse(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	ready := make(chan struct{})
	go func() { served <- cri.Serve(ctx, critest.NewFake(), sock, func() { close(ready) }) }() // ends with ctx
	<-ready
	if err := cri.Serve(ctx, critest.NewFake(), sock, func() {}); err == nil ||
		!strings.Contains(err.Error(), "another runtime") {
		t.Errorf("serve on a socket in use: got %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestInProcessContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := cri.InProcess(critest.NewFake())
		s, err := client.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		synctest.Wait() // the server has ended the stream
		for range 50 {  // whichever of the two ends is looked at first
			if _, err := s.Recv(); status.Code(err) != codes.Canceled {
				t.Fatalf("receive after cancel: got %v, want Canceled", err)
			}
		}
		if _, err := client.Runtime.Version(ctx, &runtimeapi.VersionRequest{}); status.Code(err) != codes.Canceled {
			t.Errorf("call after cancel: got %v, want Canceled", err)
		}
	})
}

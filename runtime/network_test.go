// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"errors"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestNetworkCondition: a network that can attach no pod is a condition of the runtime, worded as containerd does. A
// client that listens to events receives one without a pod when that changes.
func TestNetworkCondition(t *testing.T) {
	node := newNode(t)
	node.stop()
	node.net.news = make(chan error)
	node.start()
	stream, err := node.c.Runtime.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	condition := func() *runtimeapi.RuntimeCondition {
		st, err := node.c.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range st.GetStatus().GetConditions() {
			if c.GetType() == runtimeapi.NetworkReady {
				return c
			}
		}
		t.Fatal("no condition NetworkReady")
		return nil
	}
	if c := condition(); !c.GetStatus() {
		t.Errorf("at first: %v", c)
	}
	events := make(chan *runtimeapi.ContainerEventResponse, 100)
	go func() { // ends with the stream
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			events <- e
		}
	}()
	for _, news := range []error{errors.New("cni plugin not initialized"), nil} {
		c := condition()
		for end := time.Now().Add(20 * time.Second); c.GetStatus() != (news == nil); c = condition() {
			if time.Now().After(end) {
				t.Fatalf("after %v: %v", news, c)
			}
			node.net.news <- news // again until the stream is listened to
			select {
			case e := <-events:
				if e.GetContainerId() != "" || e.GetPodSandboxStatus() != nil {
					t.Errorf("received %v, want an event of no pod", e)
				}
			case <-time.After(time.Second):
			}
		}
		if news != nil && (c.GetReason() != "NetworkPluginNotReady" ||
			c.GetMessage() != "Network plugin returns error: cni plugin not initialized") {
			t.Errorf("worded as %v", c)
		}
	}
}

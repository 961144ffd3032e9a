// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// node is what the runtime says of itself.
type node struct {
	script *script

	mu       sync.Mutex
	notReady string // why; empty: it is ready
	noUsers  bool   // it has no user namespaces
}

// SetNotReady makes Status report the runtime as not ready with this message; empty makes it ready again.
func (n *node) SetNotReady(message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notReady = message
}

// SetUserNamespaces sets whether the runtime supports user namespaces; by default it does.
func (n *node) SetUserNamespaces(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noUsers = !yes
}

// Version returns CRI v1 and the name fake.
func (n *node) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if err := n.script.beginRead(ctx, "Version"); err != nil {
		return nil, err
	}
	return &runtimeapi.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       "fake",
		RuntimeVersion:    "1.0.0",
		RuntimeApiVersion: "v1",
	}, nil
}

// Status returns both conditions, ready unless SetNotReady is set.
func (n *node) Status(ctx context.Context, _ *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	if err := n.script.beginRead(ctx, "Status"); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: n.notReady == "", Message: n.notReady}
	if n.notReady != "" {
		c.Reason = "FakeNotReady"
	}
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{
			Conditions: []*runtimeapi.RuntimeCondition{c, {Type: runtimeapi.NetworkReady, Status: true}},
		},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: true,
			UserNamespaces:          !n.noUsers,
		}}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}, nil
}

// RuntimeConfig returns the cgroup driver cgroupfs.
func (n *node) RuntimeConfig(
	context.Context, *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
	}, nil
}

// UpdateRuntimeConfig accepts everything. Addresses of sandboxes do not depend on it.
func (n *node) UpdateRuntimeConfig(
	ctx context.Context, _ *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	if err := n.script.begin(ctx, "UpdateRuntimeConfig"); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// checkUsers refuses invalid user namespaces.
func (n *node) checkUsers(o *runtimeapi.NamespaceOption) error {
	userNamespace := o.GetUsernsOptions()
	if userNamespace == nil || userNamespace.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.noUsers {
		return status.Error(codes.FailedPrecondition, "run pod sandbox: user namespaces are not supported")
	}
	if o.GetNetwork() == runtimeapi.NamespaceMode_NODE || o.GetPid() == runtimeapi.NamespaceMode_NODE ||
		o.GetIpc() == runtimeapi.NamespaceMode_NODE {
		return status.Error(codes.InvalidArgument, "run pod sandbox: a user namespace and a namespace of the host's")
	}
	for _, maps := range [][]*runtimeapi.IDMapping{userNamespace.GetUids(), userNamespace.GetGids()} {
		if len(maps) == 0 || maps[0].GetContainerId() != 0 || maps[0].GetHostId() == 0 || maps[0].GetLength() == 0 {
			return status.Errorf(codes.InvalidArgument, "run pod sandbox: mappings %v", maps)
		}
	}
	return nil
}

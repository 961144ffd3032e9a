// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func userNamespace() *runtimeapi.NamespaceOption {
	ids := func() []*runtimeapi.IDMapping { return []*runtimeapi.IDMapping{{HostId: 720896, Length: 65536}} }
	return &runtimeapi.NamespaceOption{
		Pid:           runtimeapi.NamespaceMode_CONTAINER,
		UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids(), Gids: ids()},
	}
}

// testUserNamespace: a runtime that reports support of user namespaces makes them, returns them in the status, and
// refuses invalid ones. One without support refuses all.
func testUserNamespace(t *testing.T, b *bench) {
	statusResponse, err := b.Client.Runtime.Status(b.ctx(), &runtimeapi.StatusRequest{})
	if err != nil || len(statusResponse.GetRuntimeHandlers()) == 0 {
		t.Fatalf("status: got %v, %v, want a runtime handler", statusResponse, err)
	}
	config := func(o *runtimeapi.NamespaceOption) *runtimeapi.PodSandboxConfig {
		cfg := b.podConfig("users")
		cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: o}
		return cfg
	}
	run := func(o *runtimeapi.NamespaceOption) error {
		_, err := b.Client.Runtime.RunPodSandbox(b.ctx(), &runtimeapi.RunPodSandboxRequest{Config: config(o)})
		return err
	}
	if !statusResponse.GetRuntimeHandlers()[0].GetFeatures().GetUserNamespaces() {
		wantCode(t, "a user namespace where there are none", run(userNamespace()), codes.FailedPrecondition)
		return
	}
	for name, change := range map[string]func(*runtimeapi.NamespaceOption){
		"host network": func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE },
		"host PID":     func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE },
		"no users":     func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Uids = nil },
		"no groups":    func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Gids = nil },
		"host's root":  func(o *runtimeapi.NamespaceOption) { o.UsernsOptions.Uids[0].HostId = 0 },
	} {
		o := userNamespace()
		change(o)
		wantCode(t, "a user namespace: "+name, run(o), codes.InvalidArgument)
	}
	cfg := config(userNamespace())
	r, err := b.Client.Runtime.RunPodSandbox(b.ctx(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatalf("run pod sandbox: %v", err)
	}
	id := r.GetPodSandboxId()
	st, err := b.Client.Runtime.PodSandboxStatus(b.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if u := st.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions(); err != nil ||
		u.GetMode() != runtimeapi.NamespaceMode_POD ||
		len(u.GetUids()) != 1 || u.GetUids()[0].GetHostId() != 720896 {
		t.Errorf("pod sandbox status: got user namespace %v, %v", u, err)
	}
	c := containerConfig("c", "sleep", "1000")
	c.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: userNamespace(),
	}}
	cid := b.create(id, cfg, c)
	b.start(cid)
	if got := b.status(cid).GetState(); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container: got %s", got)
	}
	b.removePod(id)
}

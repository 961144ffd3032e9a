// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/runtimestate"
	"keelson/kubelet/userns"
)

// loadUserNamespaces reads the ID ranges of existing user namespaces of pods.
func (k *Kubelet) loadUserNamespaces(ctx context.Context) error {
	ids, ok, err := userns.Delegated(ctx)
	if err != nil {
		return err
	}
	if !ok {
		ids = userns.DefaultRange(k.cfg.MaxPods)
	}
	pods, err := k.volumes.Pods()
	if err != nil {
		return err
	}
	damaged, err := k.users.Load(ids, k.cfg.MaxPods, pods)
	if err != nil {
		return err
	}
	for _, uid := range damaged {
		if err := k.recoverUserNamespace(ctx, uid); err != nil {
			return err
		}
	}
	return nil
}

// recoverUserNamespace gets the ID range of a pod whose record cannot be read from the runtime.
func (k *Kubelet) recoverUserNamespace(ctx context.Context, uid string) error {
	rt := k.cfg.Runtime.Runtime
	list, err := rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{runtimestate.LabelPodUID: uid}},
	})
	if err != nil {
		return fmt.Errorf("ask the runtime for the sandboxes of pod %s: %w", uid, err)
	}
	for _, b := range list.GetItems() {
		if b.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			continue
		}
		st, err := rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: b.GetId()})
		if err != nil {
			return fmt.Errorf("ask the runtime for sandbox %s: %w", b.GetId(), err)
		}
		ns := st.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
		if ns == nil || ns.GetMode() == runtimeapi.NamespaceMode_NODE {
			continue
		}
		if err := k.users.Adopt(uid, ns); err != nil {
			k.cfg.Log.Error("repair the record of a pod's user namespace", "pod", uid, "err", err)
			break
		}
		k.cfg.Log.Info("the record of a pod's user namespace is repaired", "pod", uid)
		return nil
	}
	// It does not run, or with IDs that are not its own: none of its containers can start any more.
	return k.users.Release(uid)
}

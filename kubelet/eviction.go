// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/eviction"
	"keelson/kubelet/logs"
	"keelson/kubelet/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/stats"
)

// newEviction makes the source of statistics and the eviction manager.
func (k *Kubelet) newEviction() error {
	k.stats = stats.New(stats.Config{
		Runtime:  k.cfg.Runtime.Runtime,
		Images:   k.cfg.Runtime.Image,
		NodeName: k.cfg.NodeName,
		RootDir:  k.cfg.RootDir,
		LogDir:   k.cfg.LogDir,
		Pods:     podTable{k}.All,
	})
	var err error
	k.eviction, err = eviction.New(k.cfg.Eviction, k.stats, evictionNode{k}, k.cfg.Log)
	return err
}

// evictionReserved returns the resources that hard eviction thresholds reserve.
func (k *Kubelet) evictionReserved(capacity corev1.ResourceList) corev1.ResourceList {
	t, err := k.cfg.Eviction.Thresholds()
	if err != nil {
		return nil // newEviction has said so
	}
	return eviction.Reserved(t, capacity)
}

// underPressure returns why a node with a pressure condition rejects a pod; reason is empty if it does not.
func (k *Kubelet) underPressure(p *corev1.Pod) (reason, message string) {
	if text := eviction.Refuse(k.eviction.Conditions(), p, podinfo.Critical(p), podinfo.QOS(p)); text != "" {
		return reject(eviction.Reason, "%s", text)
	}
	return "", ""
}

// evictionNode implements eviction.Node.
type evictionNode struct{ k *Kubelet }

// Pods returns the pods that have not ended.
func (e evictionNode) Pods() []*corev1.Pod {
	all := podTable(e).All()
	there := make(map[string]bool, len(all))
	for _, p := range all {
		there[string(p.UID)] = true
	}
	e.k.stats.Forget(func(uid string) bool { return there[uid] })
	return slices.DeleteFunc(all, func(p *corev1.Pod) bool { return podkind.TerminalPhase(p.Status.Phase) })
}

// Critical reports whether the pod is a critical pod, which is never evicted.
func (e evictionNode) Critical(p *corev1.Pod) bool { return podinfo.Critical(p) }

// Evict evicts a pod and records the event.
func (e evictionNode) Evict(v eviction.Eviction) <-chan struct{} {
	worker := e.k.worker(string(v.Pod.UID))
	if worker == nil {
		return nil
	}
	end := pod.End{
		Phase:   corev1.PodFailed,
		Reason:  eviction.Reason,
		Message: v.Message,
		Grace:   v.Grace,
	}
	if v.Disruption {
		end.Condition = &corev1.PodCondition{
			Type:    corev1.DisruptionTarget,
			Status:  corev1.ConditionTrue,
			Reason:  corev1.PodReasonTerminationByKubelet,
			Message: v.Message,
		}
	}
	over := worker.Evict(end)
	if over == nil {
		return nil
	}
	e.k.cfg.Log.Info("pod evicted", "pod", podinfo.FullName(v.Pod), "message", v.Message)
	e.k.events.AnnotatedEventf(&corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Namespace:  v.Pod.Namespace,
		Name:       v.Pod.Name,
		UID:        v.Pod.UID,
	}, v.Notes, corev1.EventTypeWarning, eviction.Reason, "%s", v.Message)
	return over
}

// EvictionStarting records the event EvictionThresholdMet.
func (e evictionNode) EvictionStarting(resource corev1.ResourceName) {
	e.k.events.Eventf(e.k.node.Ref(), corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s",
		resource)
}

// ConditionsChanged makes the node's status be written.
func (e evictionNode) ConditionsChanged() { e.k.node.Changed() }

// Reclaim removes dead containers with their logs, and then images that no container and no pod of the node uses.
func (e evictionNode) Reclaim(ctx context.Context) error {
	err := errors.Join(e.deadContainers(ctx), e.unusedImages(ctx))
	e.k.node.Changed()
	return err
}

// deadContainers removes all dead containers of pods that have ended, and of others those that ran before the last run.
func (e evictionNode) deadContainers(ctx context.Context) error {
	rt := e.k.cfg.Runtime.Runtime
	list, err := rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list dead containers: %w", err)
	}
	key := func(c *runtimeapi.Container) string {
		return c.GetLabels()[runtimestate.LabelPodUID] + "/" + c.GetLabels()[runtimestate.LabelContainerName]
	}
	newest := map[string]int64{}
	for _, c := range list.GetContainers() {
		newest[key(c)] = max(newest[key(c)], c.GetCreatedAt())
	}
	var errs []error
	for _, c := range list.GetContainers() {
		w := e.k.worker(c.GetLabels()[runtimestate.LabelPodUID])
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || w == nil {
			continue // what no pod claims is removed when the kubelet starts
		}
		if !podkind.TerminalPhase(w.Pod().Status.Phase) && c.GetCreatedAt() == newest[key(c)] {
			continue
		}
		errs = append(errs, e.removeContainer(ctx, c.GetId()))
	}
	return errors.Join(errs...)
}

func (e evictionNode) removeContainer(ctx context.Context, id string) error {
	rt := e.k.cfg.Runtime.Runtime
	st, err := rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	if _, err := rt.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("remove dead container %s: %w", id, err)
	}
	return logs.Remove(st.GetStatus().GetLogPath())
}

// unusedImages removes images that nobody uses. Those that a pod of the node names are spared: it may be about to
// start.
func (e evictionNode) unusedImages(ctx context.Context) error {
	rt := e.k.cfg.Runtime
	list, err := rt.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list used images: %w", err)
	}
	images, err := rt.Image.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	used := map[string]bool{}
	for _, c := range list.GetContainers() {
		for _, name := range []string{
			c.GetImage().GetImage(), c.GetImage().GetUserSpecifiedImage(), c.GetImageRef(), c.GetImageId(),
		} {
			used[name] = true
		}
	}
	wanted := map[string]bool{}
	for _, p := range e.Pods() {
		for c := range podinfo.All(p) {
			wanted[c.Image] = true
		}
		for i := range p.Spec.Volumes {
			if v := p.Spec.Volumes[i].Image; v != nil {
				wanted[v.Reference] = true
			}
		}
	}
	for name := range wanted {
		st, err := rt.Image.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err == nil && st.GetImage() != nil {
			used[st.GetImage().GetId()] = true
		}
	}
	var errs []error
	for _, img := range images.GetImages() {
		names := append(append([]string{img.GetId()}, img.GetRepoTags()...), img.GetRepoDigests()...)
		if img.GetPinned() || slices.ContainsFunc(names, func(n string) bool { return used[n] }) {
			continue
		}
		if _, err := rt.Image.RemoveImage(ctx,
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: img.GetId()}}); err != nil {
			errs = append(errs, fmt.Errorf("remove unused image %s: %w", img.GetId(), err))
		}
	}
	return errors.Join(errs...)
}

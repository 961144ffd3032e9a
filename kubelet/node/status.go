// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/resources"
	"keelson/kubelet/runtimestate"
)

// declaredFeatures is status.declaredFeatures: those that this kubelet supports, in alphabetical order.
var declaredFeatures = []string{
	"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}

// status returns the node's current status. Conditions in have that other components own stay.
func (k *Keeper) status(ctx context.Context, have *corev1.Node) corev1.NodeStatus {
	var nodeStatus corev1.NodeStatus
	if have != nil {
		nodeStatus = *have.Status.DeepCopy()
	}
	nodeStatus.Capacity = k.capacity(have)
	nodeStatus.Allocatable = k.allocatable(have)
	nodeStatus.Addresses = k.cfg.Wanted.addresses()
	nodeStatus.DaemonEndpoints.KubeletEndpoint.Port = int32(k.port) // a port
	nodeStatus.NodeInfo = k.machine.info(k.cfg.Version)
	nodeStatus.Images = k.images(ctx)
	nodeStatus.DeclaredFeatures = slices.Clone(declaredFeatures)
	nodeStatus.Config = nil
	nodeStatus.VolumesInUse = nil
	if k.cfg.InUse != nil {
		nodeStatus.VolumesInUse = k.cfg.InUse()
	}
	problem := k.runtime(ctx, &nodeStatus)
	ready := corev1.NodeCondition{
		Type:    corev1.NodeReady,
		Status:  corev1.ConditionTrue,
		Reason:  "KubeletReady",
		Message: "kubelet is posting ready status",
	}
	if problem != "" {
		ready.Status = corev1.ConditionFalse
		ready.Reason = "KubeletNotReady"
		ready.Message = problem
	}
	var hold []corev1.NodeConditionType
	if k.cfg.Pressures != nil {
		hold = k.cfg.Pressures()
	}
	for _, c := range append(pressures(hold), ready) {
		setCondition(&nodeStatus, c, time.Now())
	}
	return nodeStatus
}

// capacity returns the machine's resources and the extended resources that other clients wrote into the node's
// capacity. The kubelet makes the latter allocatable.
func (k *Keeper) capacity(have *corev1.Node) corev1.ResourceList {
	l := withExtended(k.machine.Capacity(k.cfg.MaxPods), have)
	if k.cfg.Plugins != nil {
		capacity, _ := k.cfg.Plugins()
		maps.Copy(l, capacity)
	}
	return l
}

func (k *Keeper) allocatable(have *corev1.Node) corev1.ResourceList {
	l := withExtended(k.machine.Allocatable(k.cfg.MaxPods, k.cfg.Reserved, k.kept), have)
	if k.cfg.Plugins != nil {
		_, allocatable := k.cfg.Plugins()
		maps.Copy(l, allocatable)
	}
	return l
}

func withExtended(l corev1.ResourceList, have *corev1.Node) corev1.ResourceList {
	if have != nil {
		for name, q := range have.Status.Capacity {
			if resources.IsExtended(name) {
				l[name] = q.DeepCopy()
			}
		}
	}
	return l
}

func setCondition(nodeStatus *corev1.NodeStatus, nodeCondition corev1.NodeCondition, now time.Time) {
	t := metav1.NewTime(now.Truncate(time.Second))
	nodeCondition.LastHeartbeatTime = t
	nodeCondition.LastTransitionTime = t
	i := slices.IndexFunc(nodeStatus.Conditions, func(o corev1.NodeCondition) bool {
		return o.Type == nodeCondition.Type
	})
	if i < 0 {
		nodeStatus.Conditions = append(nodeStatus.Conditions, nodeCondition)
		return
	}
	if nodeStatus.Conditions[i].Status == nodeCondition.Status {
		nodeCondition.LastTransitionTime = nodeStatus.Conditions[i].LastTransitionTime
	}
	nodeStatus.Conditions[i] = nodeCondition
}

// runtime fills in the runtime's version and handlers. It returns why the node is not ready; empty: it is ready.
func (k *Keeper) runtime(ctx context.Context, nodeStatus *corev1.NodeStatus) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	v, err := k.cfg.Runtime.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Sprintf("container runtime is down: %v", err)
	}
	nodeStatus.NodeInfo.ContainerRuntimeVersion = v.GetRuntimeName() + "://" + v.GetRuntimeVersion()
	st, err := k.cfg.Runtime.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Sprintf("container runtime is down: %v", err)
	}
	nodeStatus.RuntimeHandlers = handlers(st)
	nodeStatus.Features = nil
	if f := st.GetFeatures(); f != nil {
		policy := f.GetSupplementalGroupsPolicy()
		nodeStatus.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &policy}
	}
	var problems []string
	for _, c := range st.GetStatus().GetConditions() {
		if c.GetStatus() {
			continue
		}
		if c.GetType() == runtimeapi.RuntimeReady {
			problems = append(problems, "container runtime not ready: "+runtimestate.Condition(c))
		}
	}
	if text := runtimestate.NetworkProblem(st); text != "" {
		problems = append(problems, text)
	}
	if len(problems) > 1 {
		return "[" + strings.Join(problems, ", ") + "]"
	}
	return strings.Join(problems, "")
}

func handlers(st *runtimeapi.StatusResponse) []corev1.NodeRuntimeHandler {
	var out []corev1.NodeRuntimeHandler
	for _, h := range st.GetRuntimeHandlers() {
		rro := h.GetFeatures().GetRecursiveReadOnlyMounts()
		users := h.GetFeatures().GetUserNamespaces()
		out = append(out, corev1.NodeRuntimeHandler{
			Name:     h.GetName(),
			Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &rro, UserNamespaces: &users},
		})
	}
	// A runtime may list them in any order: the status changes with what they can do alone.
	slices.SortFunc(out, func(a, b corev1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// replaceAddresses makes a patch replace the whole list of addresses. The list merges by type: without this a second
// address of a type, written by another client, would stay.
func replaceAddresses(patch []byte, addresses []corev1.NodeAddress) ([]byte, error) {
	var body map[string]map[string]any
	if err := json.Unmarshal(patch, &body); err != nil {
		return nil, fmt.Errorf("decode patch of node status: %w", err)
	}
	status := body["status"]
	if status["addresses"] == nil && status["$setElementOrder/addresses"] == nil {
		return patch, nil
	}
	list := []any{map[string]any{"$patch": "replace"}}
	for _, a := range addresses {
		list = append(list, a)
	}
	status["addresses"] = list
	delete(status, "$setElementOrder/addresses")
	return json.Marshal(body)
}

// older reports whether a is an older version than b.
func older(a, b *corev1.Node) bool {
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX == nil && errY == nil && x < y
}

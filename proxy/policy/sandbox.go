// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	podapi "keelson/api/core/pod"
	"keelson/event"
)

// early holds the addresses of a pod that the runtime has reported (Connected) and the API does not show yet.
type early struct {
	addrs []netip.Addr
	at    time.Time
	// known: the pod was seen in the API, so a deletion there removes it.
	known bool
}

// podLocked updates a pod from the API; nil: it does not exist there. Addresses from the runtime are used until the API
// has them.
func (a *Agent) podLocked(namespace, name string, obj *corev1.Pod) {
	key := namespace + "/" + name
	early, isEarly := a.early[key]
	if obj == nil {
		if isEarly && !early.known {
			return // the API does not have the address yet
		}
		delete(a.early, key)
		a.state.DeletePod(namespace, name)
		return
	}
	pod, visible := FromObject(obj, a.cfg.Node)
	if isEarly {
		if slices.ContainsFunc(pod.Addrs, func(ip netip.Addr) bool { return slices.Contains(early.addrs, ip) }) ||
			podapi.Terminal(obj) {
			delete(a.early, key)
		} else {
			early.known = true
			a.early[key] = early
			pod = Pod{
				Namespace: namespace,
				Name:      name,
				UID:       string(obj.UID),
				Labels:    obj.Labels,
				Local:     true,
				Addrs:     early.addrs,
				Ports:     namedPorts(&obj.Spec),
			}
			visible = true
		}
	}
	if visible {
		a.state.SetPod(pod)
	} else {
		a.state.DeletePod(namespace, name)
	}
}

// waitForPlan bounds the wait of a sandbox; forgetEarly is how long a pod is kept that never appears in the API.
const (
	waitForPlan = 10 * time.Second
	forgetEarly = 10 * time.Minute
)

// Connected is called with a pod's addresses before its containers start. It returns when the pod's policies are in the
// kernel. Before the first plan it waits for waitForPlan at most: static pods must start without an API server.
func (a *Agent) Connected(
	ctx context.Context, namespace, name string, labels map[string]string, addrs []netip.Addr,
) error {
	wait := time.NewTimer(waitForPlan)
	defer wait.Stop()
	select {
	case <-a.ready:
	case <-ctx.Done():
		return fmt.Errorf("wait for network policies: %w", context.Cause(ctx))
	case <-wait.C:
		a.cfg.Log.Warn("a pod starts before its network policies are known: they have not been listed from the API "+
			"server yet", "namespace", namespace, "pod", name)
	}
	begin := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, e := range a.early {
		if !e.known && begin.Sub(e.at) > forgetEarly {
			delete(a.early, key)
		}
	}
	a.early[namespace+"/"+name] = early{addrs: addrs, at: begin}
	if obj, err := a.pods.Pods(namespace).Get(name); err == nil {
		a.podLocked(namespace, name, obj)
	} else {
		a.state.SetPod(Pod{
			Namespace: namespace,
			Name:      name,
			Labels:    labels,
			Local:     true,
			Addrs:     addrs,
		})
	}
	if a.writer == nil {
		return nil // the first plan will include it
	}
	if err := a.writeLocked(begin); err != nil {
		a.queue.wake.Notify() // the loop writes again
		return fmt.Errorf("isolate pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

// emitMarksLocked emits a mark for each pod that becomes isolated.
func (a *Agent) emitMarksLocked(begin time.Time, addrs []netip.Addr) {
	marked := map[string]bool{}
	for _, addr := range addrs {
		pod := a.state.owner(addr)
		if pod == nil || pod.UID == "" || marked[pod.UID] {
			continue
		}
		marked[pod.UID] = true
		policy := &event.Policy{Ingress: pod.policies(Ingress), Egress: pod.policies(Egress)}
		if len(policy.Ingress)+len(policy.Egress) == 0 {
			continue
		}
		a.cfg.Marks.Emit(event.Event{
			Step:      event.StepPolicy,
			Component: "networkpolicy",
			At:        begin,
			Took:      time.Since(begin),
			Subject: event.Subject{
				Resource:  "pods",
				Namespace: pod.Namespace,
				Name:      pod.Name,
				UID:       pod.UID,
			},
			Detail: policy,
		})
	}
}

func (a *Agent) localLocked() []netip.Addr {
	var out []netip.Addr
	for addr := range a.state.claims {
		out = append(out, addr)
	}
	return out
}

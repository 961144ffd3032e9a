// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ownUsers tells whether the pod wants a user namespace of its own.
func ownUsers(p *corev1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// users is the user namespace that the pod's sandbox was made with; nil: the node's.
func (w *Worker) users(p *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(p) {
		return nil, nil
	}
	if ns := w.env.Users.Of(w.uid); ns != nil {
		return ns, nil
	}
	return nil, errors.New("the pod has `spec.hostUsers: false`, but its sandbox was made without a user namespace: " +
		"delete the pod")
}

// acquireUsers returns the runtime handler for a new sandbox of the pod, and its user namespace; nil: the node's. A pod
// that wants its own where there are none gets an error, never the node's.
func (w *Worker) acquireUsers(
	ctx context.Context, p *corev1.Pod,
) (handler string, ns *runtimeapi.UserNamespace, err error) {
	if p.Spec.RuntimeClassName != nil && *p.Spec.RuntimeClassName != "" {
		if handler, err = w.env.Handler(ctx, *p.Spec.RuntimeClassName); err != nil {
			return "", nil, err
		}
	}
	if !ownUsers(p) {
		return handler, nil, nil
	}
	if err := w.canOwnUsers(ctx, handler); err != nil {
		return "", nil, err
	}
	ns, err = w.env.Users.Acquire(w.uid)
	return handler, ns, err
}

// canOwnUsers asks the runtime whether it can make user namespaces.
func (w *Worker) canOwnUsers(ctx context.Context, handler string) error {
	st, err := w.env.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("ask the runtime for its features: %w", err)
	}
	said := "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
	if handler != "" {
		said = fmt.Sprintf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user "+
			"namespaces", handler)
	}
	all := st.GetRuntimeHandlers()
	i := slices.IndexFunc(all, func(h *runtimeapi.RuntimeHandler) bool { return h.GetName() == handler })
	switch {
	case i < 0:
		return fmt.Errorf("%s: the handler %q is not known", said, handler)
	case all[i].GetFeatures().GetUserNamespaces():
		return nil
	case st.GetInfo()["userNamespaces"] != "":
		return fmt.Errorf("%s: %s", said, st.GetInfo()["userNamespaces"])
	}
	return errors.New(said)
}

// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/volume"
)

// ownUsers reports whether the pod wants a user namespace of its own.
func ownUsers(p *corev1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// users is the user namespace that the pod's sandbox was made with; nil: the node's.
func (s *starter) users(p *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(p) {
		return nil, nil
	}
	if ns := s.env.Users.Of(s.uid); ns != nil {
		return ns, nil
	}
	return nil, errors.New("the pod has `spec.hostUsers: false`, but its sandbox was made without a user namespace: " +
		"delete the pod")
}

// acquireUsers returns the runtime handler for a new sandbox of the pod, and its user namespace; nil: the node's. A pod
// that wants its own where there are none gets an error, never the node's.
func (s *starter) acquireUsers(
	ctx context.Context, p *corev1.Pod,
) (handler string, ns *runtimeapi.UserNamespace, err error) {
	if p.Spec.RuntimeClassName != nil && *p.Spec.RuntimeClassName != "" {
		if handler, err = s.env.Handler(ctx, *p.Spec.RuntimeClassName); err != nil {
			return "", nil, err
		}
	}
	if !ownUsers(p) {
		return handler, nil, nil
	}
	if err := s.canOwnUsers(ctx, handler); err != nil {
		return "", nil, err
	}
	ns, err = s.env.Users.Acquire(s.uid)
	return handler, ns, err
}

// canOwnUsers asks the runtime whether it can make user namespaces.
func (s *starter) canOwnUsers(ctx context.Context, handler string) error {
	said := "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
	if handler != "" {
		said = fmt.Sprintf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user "+
			"namespaces", handler)
	}
	features, info, err := s.features(ctx, handler)
	switch {
	case err != nil:
		return err
	case features == nil:
		return fmt.Errorf("%s: the handler %q is not known", said, handler)
	case features.GetUserNamespaces():
		return nil
	case info["userNamespaces"] != "":
		return fmt.Errorf("%s: %s", said, info["userNamespaces"])
	}
	return errors.New(said)
}

// features returns what a handler of the runtime can do, and what the runtime says about itself. The features of an
// unknown handler are nil.
func (s *starter) features(
	ctx context.Context, handler string,
) (can *runtimeapi.RuntimeHandlerFeatures, info map[string]string, err error) {
	st, err := s.env.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, nil, fmt.Errorf("ask the runtime for its features: %w", err)
	}
	for _, h := range st.GetRuntimeHandlers() {
		if h.GetName() == handler && h.GetFeatures() == nil {
			return &runtimeapi.RuntimeHandlerFeatures{}, st.GetInfo(), nil
		}
		if h.GetName() == handler {
			return h.GetFeatures(), st.GetInfo(), nil
		}
	}
	return nil, st.GetInfo(), nil
}

// canMountRecursively reports whether the pod's runtime handler can make mounts read-only with all mounts below
// them. It asks only for a container that has such a mount.
func (s *starter) canMountRecursively(ctx context.Context, p *corev1.Pod, c *corev1.Container) (bool, error) {
	if !slices.ContainsFunc(c.VolumeMounts, volume.WantsRecursiveReadOnly) {
		return false, nil
	}
	handler := ""
	if p.Spec.RuntimeClassName != nil && *p.Spec.RuntimeClassName != "" {
		var err error
		if handler, err = s.env.Handler(ctx, *p.Spec.RuntimeClassName); err != nil {
			return false, err
		}
	}
	features, _, err := s.features(ctx, handler)
	return features.GetRecursiveReadOnlyMounts(), err
}

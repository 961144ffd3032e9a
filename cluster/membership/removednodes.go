// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver/access"
	"keelson/apiserver/admission/noderestriction"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/kubelet/node"
	"keelson/pki"
)

// removedNodes is the ConfigMap in kube-system with the names of removed nodes and the times of removal. An entry is
// kept for the lifetime of a certificate.
const (
	removedNodes     = "keelson-removed-nodes"
	removedNodeTTL   = 366 * 24 * time.Hour
	removedNodeGrace = 5 * time.Minute
)

// RemoveNode deletes a node, its lease and its certificate requests. Its certificates are invalid from then on
// (RemovedNodeCheck), as are the tokens of the roles on the node other than the kubelet. A Keelson kubelet that still
// runs ends the node's pods.
func RemoveNode(ctx context.Context, to *rest.Config, name string) error {
	cl, err := kubernetes.NewForConfig(to)
	if err != nil {
		return err
	}
	leaves := []byte(`{"metadata":{"annotations":{"` + node.AnnotationRemoved + `":"true"}}}`)
	if _, err := cl.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err == nil {
		if err := recordRemoved(ctx, cl, name, time.Now()); err != nil {
			return err
		}
	}
	if _, err = cl.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, leaves, metav1.PatchOptions{}); err == nil {
		err = cl.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no node %q: `keelson kubectl get nodes` lists them", name)
	}
	if err != nil {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	errs := []error{cl.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})}
	list, err := cl.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	errs = append(errs, err)
	if err == nil {
		for i := range list.Items {
			if list.Items[i].Spec.Username == "system:node:"+name {
				errs = append(errs, cl.CertificatesV1().CertificateSigningRequests().Delete(ctx, list.Items[i].Name,
					metav1.DeleteOptions{}))
			}
		}
	}
	for i, err := range errs {
		if apierrors.IsNotFound(err) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// recordRemoved records that a node is removed now. Its earlier certificates are invalid from then on.
func recordRemoved(ctx context.Context, cl kubernetes.Interface, name string, now time.Time) error {
	maps := cl.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	data := map[string]any{name: now.UTC().Format(time.RFC3339)}
	had, err := maps.Get(ctx, removedNodes, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: removedNodes}}
		if _, err := maps.Create(ctx, cm, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("remember that node %s is removed: %w", name, err)
		}
	case err != nil:
		return fmt.Errorf("remember that node %s is removed: %w", name, err)
	default:
		for other, text := range had.Data {
			if at, err := time.Parse(time.RFC3339, text); other != name &&
				(err != nil || now.Sub(at) > removedNodeTTL) {
				data[other] = nil // its certificates have expired
			}
		}
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return fmt.Errorf("remember that node %s is removed: %w", name, err)
	}
	if _, err := maps.Patch(ctx, removedNodes, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("remember that node %s is removed: %w", name, err)
	}
	return nil
}

// removedAt returns a function that returns when a node was removed.
func removedAt(r *access.Reader) func(context.Context, string) (time.Time, bool) {
	return func(ctx context.Context, node string) (time.Time, bool) {
		obj, err := r.Cached(ctx, corev1.SchemeGroupVersion.WithResource("configmaps"), metav1.NamespaceSystem,
			removedNodes)
		cm, ok := obj.(*corev1.ConfigMap)
		if err != nil || !ok {
			return time.Time{}, false
		}
		at, err := time.Parse(time.RFC3339, cm.Data[node])
		return at, err == nil
	}
}

// RemovedNodeCheck authenticates by certificate, but rejects a node whose certificate was issued before the node was
// removed. For removedNodeGrace such a node may still watch that its pods end; it is marked, and NodeRestriction lets
// it neither register nor get certificates.
type RemovedNodeCheck struct {
	next    auth.Authenticator
	removed func(ctx context.Context, node string) (time.Time, bool)
	now     func() time.Time
}

// NewRemovedNodeCheck checks what next authenticates by the nodes that objects holds as removed.
func NewRemovedNodeCheck(next auth.Authenticator, objects *access.Reader) RemovedNodeCheck {
	return RemovedNodeCheck{next: next, removed: removedAt(objects), now: time.Now}
}

// Authenticate implements auth.Authenticator.
func (a RemovedNodeCheck) Authenticate(r *http.Request) (*auth.User, bool, error) {
	user, ok, err := a.next.Authenticate(r)
	if !ok || err != nil {
		return user, ok, err
	}
	node, is := authz.NodeName(user)
	if !is || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return user, ok, nil
	}
	at, gone := a.removed(r.Context(), node)
	switch {
	case !gone || !pki.Issued(r.TLS.PeerCertificates[0]).Before(at):
		return user, true, nil
	case a.now().Sub(at) > removedNodeGrace:
		return nil, false, fmt.Errorf("%w: node %s was removed from the cluster at %s, after its certificate was "+
			"issued", authn.ErrUnauthorized, node, at.Format(time.RFC3339))
	}
	user.Annotations = map[string]string{noderestriction.RemovedNode: at.Format(time.RFC3339)}
	return user, true, nil
}

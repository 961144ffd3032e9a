// SPDX-License-Identifier: Apache-2.0

package refs

import (
	"context"
	"errors"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Kinds of references to several objects: all bundles of a signer, all certificate requests of a node's pods.
const (
	Bundle   = "clustertrustbundle"
	Signer   = "signer"
	Requests = "podcertificaterequests"
)

// singleObject reports whether references of a kind are to one object.
func singleObject(kind string) bool { return kind != Signer && kind != Requests }

func selectorOf(r Ref) fields.Selector {
	switch r.Kind {
	case Signer:
		return fields.OneTermEqualSelector("spec.signerName", r.Name)
	case Requests:
		return fields.OneTermEqualSelector("spec.nodeName", r.Name)
	}
	return fields.OneTermEqualSelector("metadata.name", r.Name)
}

// trust adds the references of a projected volume's trust bundles and certificates.
func (s set) trust(p *corev1.Pod, src *corev1.VolumeProjection) {
	if b := src.ClusterTrustBundle; b != nil && b.Name != nil {
		s.refs[Ref{Bundle, "", *b.Name}] = true
	} else if b != nil && b.SignerName != nil {
		s.refs[Ref{Signer, "", *b.SignerName}] = true
	}
	if src.PodCertificate != nil {
		s.refs[Ref{Requests, "", p.Spec.NodeName}] = true
	}
}

// TrustBundles returns the bundles of a projection: the one of a name, where a missing one is an error, or those of a
// signer that match a selector.
func (s *Store) TrustBundles(
	ctx context.Context, src *corev1.ClusterTrustBundleProjection,
) ([]*certificatesv1.ClusterTrustBundle, error) {
	c := s.client.CertificatesV1().ClusterTrustBundles()
	switch {
	case src.Name != nil:
		if o, exists, ok := s.cached(Ref{Bundle, "", *src.Name}); ok && exists {
			return []*certificatesv1.ClusterTrustBundle{o.(*certificatesv1.ClusterTrustBundle)}, nil
		}
		b, err := c.Get(ctx, *src.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return []*certificatesv1.ClusterTrustBundle{b}, nil
	case src.SignerName == nil:
		return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	selector, err := metav1.LabelSelectorAsSelector(src.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("label selector: %w", err)
	}
	return s.bundlesOf(ctx, *src.SignerName, selector)
}

func (s *Store) bundlesOf(
	ctx context.Context, signer string, selector labels.Selector,
) ([]*certificatesv1.ClusterTrustBundle, error) {
	var out []*certificatesv1.ClusterTrustBundle
	take := func(b *certificatesv1.ClusterTrustBundle) {
		if b.Spec.SignerName == signer && selector.Matches(labels.Set(b.Labels)) {
			out = append(out, b)
		}
	}
	if inf := s.synced(Ref{Signer, "", signer}); inf != nil {
		for _, o := range inf.GetStore().List() {
			take(o.(*certificatesv1.ClusterTrustBundle))
		}
		return out, nil
	}
	l, err := s.client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{
		FieldSelector: selectorOf(Ref{Signer, "", signer}).String(),
	})
	if err != nil {
		return nil, err
	}
	for i := range l.Items {
		take(&l.Items[i])
	}
	return out, nil
}

// RequestCertificate creates a certificate request for the pod. spec has the signer and the key type; the other fields
// are set here.
func (s *Store) RequestCertificate(
	ctx context.Context, pod *corev1.Pod, spec certificatesv1.PodCertificateRequestSpec,
) (*certificatesv1.PodCertificateRequest, error) {
	account, err := s.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName,
		metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	node, err := s.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	spec.PodName = pod.Name
	spec.PodUID = pod.UID
	spec.ServiceAccountName = account.Name
	spec.ServiceAccountUID = account.UID
	spec.NodeName = types.NodeName(node.Name)
	spec.NodeUID = node.UID
	return s.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(
		ctx, &certificatesv1.PodCertificateRequest{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName: "req-",
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1",
					Kind:       "Pod",
					Name:       pod.Name,
					UID:        pod.UID,
				}},
			},
			Spec: spec,
		}, metav1.CreateOptions{})
}

// CertificateRequest reads a request. A missing one is an IsNotFound error.
func (s *Store) CertificateRequest(
	ctx context.Context, p *corev1.Pod, name string,
) (*certificatesv1.PodCertificateRequest, error) {
	if inf := s.synced(Ref{Requests, "", p.Spec.NodeName}); inf != nil {
		if o, exists, err := inf.GetStore().GetByKey(p.Namespace + "/" + name); err == nil && exists {
			return o.(*certificatesv1.PodCertificateRequest), nil
		}
	}
	// A node may read only the requests of its pods. Only a list has the field selector for that.
	l, err := s.client.CertificatesV1().PodCertificateRequests(p.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.AndSelectors(selectorOf(Ref{Requests, "", p.Spec.NodeName}),
			fields.OneTermEqualSelector("metadata.name", name)).String(),
	})
	if err != nil {
		return nil, err
	}
	for i := range l.Items {
		if l.Items[i].Name == name {
			return &l.Items[i], nil
		}
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("podcertificaterequests"), name)
}

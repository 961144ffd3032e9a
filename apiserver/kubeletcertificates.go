// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"keelson/api/metrics"
)

const (
	// kubeletAnswer is how long a kubelet may take to show its certificate.
	kubeletAnswer = 3 * time.Second
	// kubeletsAtOnce is how many are asked at a time.
	kubeletsAtOnce = 64
)

// ServingCertificate is the certificate that the kubelet of a node serves with; nil if it does not answer this server.
type ServingCertificate struct {
	Node string
	Leaf *x509.Certificate
}

// KubeletCertificates asks the kubelets of all nodes for their serving certificates, sorted by node. It leaves out
// simulated nodes, which have none, and certificates of an authority that this server does not trust.
func (d *Data) KubeletCertificates(ctx context.Context) ([]ServingCertificate, error) {
	list, err := d.Reader.List(ctx, nodesGVR, "")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var out []ServingCertificate
	var group errgroup.Group
	group.SetLimit(kubeletsAtOnce)
	for _, obj := range list {
		node, ok := obj.(*corev1.Node)
		if !ok || metrics.Fake(node) {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, kubeletAnswer)
			defer cancel()
			leaf, err := d.kubelets.Certificate(ctx, node.Name) // nil: it does not answer
			if _, is := errors.AsType[*tls.CertificateVerificationError](err); is {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, ServingCertificate{node.Name, leaf})
			return nil
		})
	}
	_ = group.Wait() // none returns an error
	slices.SortFunc(out, func(a, b ServingCertificate) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}

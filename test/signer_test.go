// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// signer issues the certificates of pods, as an operator in a cluster does (KEP-4317).
type signer struct {
	name   string
	client kubernetes.Interface
	key    *ecdsa.PrivateKey
	root   *x509.Certificate
}

// startSigner runs a signer of that name until the script ends, and publishes its authority as a ClusterTrustBundle.
func startSigner(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signer NAME BUNDLE")
	}
	client := clientOf(ts)
	key, root, err := newAuthority(args[0])
	ts.Check(err)
	s := &signer{name: args[0], client: client, key: key, root: root}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = client.CertificatesV1().ClusterTrustBundles().Create(ctx, &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: args[1]},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: s.name, TrustBundle: pemOf(root.Raw)},
	}, metav1.CreateOptions{})
	ts.Check(err)
	requests, err := client.CertificatesV1().PodCertificateRequests("").Watch(ctx, metav1.ListOptions{
		FieldSelector: "spec.signerName=" + s.name,
	})
	ts.Check(err)
	ended := make(chan error, 1)
	go func() { // ends when the watch is stopped
		defer close(ended)
		for event := range requests.ResultChan() {
			request, ok := event.Object.(*certificatesv1.PodCertificateRequest)
			if ok && event.Type != "DELETED" && len(request.Status.Conditions) == 0 {
				// the pod, and its request with it, may be gone
				if err := s.issue(ctx, request); err != nil && !apierrors.IsNotFound(err) {
					ended <- err
					return
				}
			}
		}
	}()
	ts.Defer(func() {
		requests.Stop()
		if err := <-ended; err != nil {
			ts.Logf("signer: %v", err)
		}
		cancel()
	})
}

func newAuthority(name string) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	root := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(365 * 24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	root, err = x509.ParseCertificate(der)
	return key, root, err
}

// pathAnnotation is what a pod asks the signer for: another path in its identity.
const pathAnnotation = "signer.example.com/path"

func (s *signer) issue(ctx context.Context, request *certificatesv1.PodCertificateRequest) error {
	stub, err := x509.ParseCertificateRequest(request.Spec.StubPKCS10Request)
	if err != nil {
		return fmt.Errorf("read the stub of %s: %w", request.Name, err)
	}
	path := fmt.Sprintf("/ns/%s/sa/%s", request.Namespace, request.Spec.ServiceAccountName)
	if asked := request.Spec.UnverifiedUserAnnotations[pathAnnotation]; asked != "" {
		path = asked
	}
	begin := time.Now().Add(-time.Minute).Truncate(time.Second)
	life := time.Duration(*request.Spec.MaxExpirationSeconds) * time.Second // the server sets a default
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: request.Spec.PodName},
		NotBefore:    begin,
		NotAfter:     begin.Add(life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: path}},
		DNSNames:     []string{request.Spec.PodName + "." + request.Namespace + ".svc"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.root, stub.PublicKey, s.key)
	if err != nil {
		return fmt.Errorf("sign for %s: %w", request.Name, err)
	}
	out := request.DeepCopy()
	out.Status = certificatesv1.PodCertificateRequestStatus{
		CertificateChain: pemOf(der),
		NotBefore:        &metav1.Time{Time: template.NotBefore},
		BeginRefreshAt:   &metav1.Time{Time: begin.Add(life / 2)},
		NotAfter:         &metav1.Time{Time: template.NotAfter},
		Conditions: []metav1.Condition{{
			Type:               certificatesv1.PodCertificateRequestConditionTypeIssued,
			Status:             metav1.ConditionTrue,
			Reason:             "Issued",
			LastTransitionTime: metav1.Now(),
		}},
	}
	_, err = s.client.CertificatesV1().PodCertificateRequests(request.Namespace).UpdateStatus(ctx, out,
		metav1.UpdateOptions{})
	return err
}

// makeBundles creates ClusterTrustBundles with an authority of their own each, and writes their certificates to
// NAME.pem.
func makeBundles(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 4 {
		ts.Fatalf("usage: bundles COUNT NAME [SIGNER [KEY=VALUE]]; NAME has %%d if there are several")
	}
	count, err := strconv.Atoi(args[0])
	ts.Check(err)
	client := clientOf(ts)
	for i := range count {
		name := strings.Replace(args[1], "%d", strconv.Itoa(i), 1)
		_, root, err := newAuthority(name)
		ts.Check(err)
		bundle := &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       certificatesv1.ClusterTrustBundleSpec{TrustBundle: pemOf(root.Raw)},
		}
		if len(args) > 2 {
			bundle.Spec.SignerName = args[2]
		}
		if len(args) > 3 {
			key, value, _ := strings.Cut(args[3], "=")
			bundle.Labels = map[string]string{key: value}
		}
		_, err = client.CertificatesV1().ClusterTrustBundles().Create(context.Background(), bundle,
			metav1.CreateOptions{})
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(name+".pem"), []byte(bundle.Spec.TrustBundle), 0o600))
	}
}

// compareTrust checks that the certificates of FILE are those of the others, in any order, each once.
func compareTrust(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: sametrust FILE OTHERS...")
	}
	got := blocksOf(ts, args[0])
	var want []string
	for _, file := range args[1:] {
		want = append(want, blocksOf(ts, file)...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		ts.Fatalf("%s: got %d certificates, want %d others", args[0], len(got), len(want))
	}
}

func blocksOf(ts *testscript.TestScript, file string) []string {
	var out []string
	for rest := []byte(ts.ReadFile(file)); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out
		}
		out = append(out, string(block.Bytes))
	}
}

// showCertificate prints what the tests compare of the first certificate in a file.
func showCertificate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: certificate FILE")
	}
	for _, block := range blocksOf(ts, args[0]) {
		if c, err := x509.ParseCertificate([]byte(block)); err == nil { // a private key is none
			_, err := fmt.Fprintln(ts.Stdout(), c.NotAfter.Sub(c.NotBefore), c.PublicKeyAlgorithm, c.URIs)
			ts.Check(err)
			return
		}
	}
	ts.Fatalf("%s has no certificate", args[0])
}

func clientOf(ts *testscript.TestScript) kubernetes.Interface {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(ts.Getenv("KEELSON_DATA_DIR"), "kubeconfig"))
	ts.Check(err)
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	ts.Check(err)
	return client
}

func pemOf(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

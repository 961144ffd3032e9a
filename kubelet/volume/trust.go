// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Trust reads trust bundles, and requests certificates. Objects are shared: never modify them.
type Trust interface {
	// TrustBundles returns the bundles of a projection. A missing bundle of that name is an IsNotFound error.
	TrustBundles(
		ctx context.Context, p *corev1.ClusterTrustBundleProjection,
	) ([]*certificatesv1.ClusterTrustBundle, error)
	// RequestCertificate creates a certificate request for the pod; the spec has the signer and the key type.
	RequestCertificate(
		ctx context.Context, p *corev1.Pod, spec certificatesv1.PodCertificateRequestSpec,
	) (*certificatesv1.PodCertificateRequest, error)
	// CertificateRequest reads a request of the pod; a missing one is an IsNotFound error. A change of it wakes the
	// pod's worker.
	CertificateRequest(ctx context.Context, p *corev1.Pod, name string) (*certificatesv1.PodCertificateRequest, error)
}

// modeFor returns mode and owner of a secret file: if all containers have the same user, only that user may read it.
func (w *payload) modeFor(mode int32) file {
	f := file{mode: mode, uid: -1}
	if uid, same := oneUser(w.in.Pod); same {
		f.uid = uid
		f.mode = 0o600
	}
	if sc := w.in.Pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		f.mode = 0o600
	}
	return f
}

// putBytes adds a file, unless its path is empty.
func (w *payload) putBytes(target string, data []byte, f file) error {
	if target == "" {
		return nil
	}
	return w.put(target, len(data), func() []byte { return data }, f)
}

// bundle projects the certificates of trust bundles, each once. Their order has no meaning, and changes only when the
// certificates change.
func (w *payload) bundle(ctx context.Context, projection *corev1.ClusterTrustBundleProjection, mode int32) error {
	optional := projection.Optional != nil && *projection.Optional
	all, err := w.src.TrustBundles(ctx, projection)
	switch {
	case apierrors.IsNotFound(err) && optional:
		all = nil
	case err != nil:
		return fmt.Errorf("while getting ClusterTrustBundle: %w", err)
	case len(all) == 0 && !optional:
		return errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	var ders [][]byte
	for _, b := range all {
		ders = append(ders, certificates(b.Spec.TrustBundle)...)
	}
	slices.SortFunc(ders, bytes.Compare)
	return w.putBytes(projection.Path, encodeAll(slices.CompactFunc(ders, bytes.Equal)), w.modeFor(mode))
}

// certificate is the stored state of one certificate of a pod. It is on the tmpfs next to the volumes, so that a
// restarted kubelet does not request a certificate again.
type certificate struct {
	// Request is the name of the pending request, and NewKey is its key.
	Request string `json:"request,omitempty"`
	NewKey  []byte `json:"newKey,omitempty"`
	// Key and Chain are the last issued certificate, as PEM.
	Key     []byte    `json:"key,omitempty"`
	Chain   []byte    `json:"chain,omitempty"`
	Renew   time.Time `json:"renew"`
	Refused string    `json:"refused,omitempty"`
}

// renewSpread spreads the renewals of pods that started together.
const renewSpread = 5 * time.Minute

// podCertificate projects a private key, which never leaves the node, and its certificate, which a signer issues.
func (w *payload) podCertificate(
	ctx context.Context, projection *corev1.PodCertificateProjection, at string, mode int32,
) error {
	state := filepath.Join(w.stateDir, at+".json")
	certificate, err := w.obtain(ctx, projection, state)
	if err != nil {
		return err
	}
	if certificate.Request == "" {
		w.renewAt(certificate.Renew)
	}
	f := w.modeFor(mode)
	return errors.Join(
		w.putBytes(projection.CredentialBundlePath, append(bytes.Clone(certificate.Key), certificate.Chain...), f),
		w.putBytes(projection.KeyPath, certificate.Key, f),
		w.putBytes(projection.CertificateChainPath, certificate.Chain, f),
	)
}

// obtain requests or renews the certificate if needed, and returns the current one, if any. A renewal may be pending.
func (w *payload) obtain(
	ctx context.Context, projection *corev1.PodCertificateProjection, state string,
) (*certificate, error) {
	c, err := loadCertificate(state)
	if err != nil {
		return nil, err
	}
	if c.Request != "" {
		if err := w.answer(ctx, c); err != nil {
			return nil, err
		}
	}
	if c.Refused == "" && c.Request == "" && (len(c.Key) == 0 || !time.Now().Before(c.Renew)) {
		if err := w.request(ctx, projection, c); err != nil {
			return nil, err
		}
	}
	if err := c.save(state); err != nil {
		return nil, err
	}
	switch {
	case c.Refused != "":
		return nil, errors.New(c.Refused)
	case len(c.Key) == 0:
		return nil, fmt.Errorf("PodCertificateRequest %s/%s is not issued yet", w.in.Pod.Namespace, c.Request)
	}
	return c, nil
}

// answer stores the result of the pending request.
func (w *payload) answer(ctx context.Context, c *certificate) error {
	request, err := w.src.CertificateRequest(ctx, w.in.Pod, c.Request)
	if apierrors.IsNotFound(err) {
		c.Request = ""
		c.NewKey = nil // a client has deleted it: request again
		return nil
	}
	if err != nil {
		return fmt.Errorf("while getting PodCertificateRequest %s/%s: %w", w.in.Pod.Namespace, c.Request, err)
	}
	for _, cond := range request.Status.Conditions {
		switch cond.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			word := map[bool]string{
				true:  "was denied",
				false: "failed",
			}[cond.Type == certificatesv1.PodCertificateRequestConditionTypeDenied]
			c.Refused = fmt.Sprintf("PodCertificateRequest %s/%s %s, reason=%q, message=%q", request.Namespace,
				request.Name, word,
				cond.Reason, cond.Message)
			return nil
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			c.Key = c.NewKey
			c.Chain = encodeAll(certificates(request.Status.CertificateChain))
			c.Request = ""
			c.NewKey = nil
			if t := request.Status.BeginRefreshAt; t != nil {
				c.Renew = t.Add(mathrand.N(renewSpread)) // no secret
			}
			return nil
		}
	}
	return nil
}

func (w *payload) request(ctx context.Context, projection *corev1.PodCertificateProjection, c *certificate) error {
	key, err := newKey(projection.KeyType)
	if err != nil {
		return err
	}
	proof, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return fmt.Errorf("prove the possession of a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	r, err := w.src.RequestCertificate(ctx, w.in.Pod, certificatesv1.PodCertificateRequestSpec{
		SignerName:                projection.SignerName,
		MaxExpirationSeconds:      projection.MaxExpirationSeconds,
		StubPKCS10Request:         proof,
		UnverifiedUserAnnotations: projection.UserAnnotations,
	})
	if err != nil {
		return fmt.Errorf("while creating PodCertificateRequest: %w", err)
	}
	c.Request = r.Name
	c.NewKey = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return nil
}

func newKey(kind string) (crypto.Signer, error) {
	switch kind {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("unknown key type %q", kind)
}

func loadCertificate(state string) (*certificate, error) {
	c := &certificate{}
	b, err := os.ReadFile(state) // our own
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of a certificate: %w", err)
	}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", state, err)
	}
	return c, nil
}

func (c *certificate) save(state string) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(state), 0o700); err != nil {
		return fmt.Errorf("make %s: %w", filepath.Dir(state), err)
	}
	if old, err := os.ReadFile(state); err == nil && bytes.Equal(old, b) { // our own
		return nil
	}
	if err := os.WriteFile(state+".new", b, 0o600); err != nil {
		return fmt.Errorf("keep the state of a certificate: %w", err)
	}
	if err := os.Rename(state+".new", state); err != nil {
		return fmt.Errorf("keep the state of a certificate: %w", err)
	}
	return nil
}

// certificates returns the blocks of a PEM file.
func certificates(text string) [][]byte {
	var out [][]byte
	for rest := []byte(text); ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			return out
		}
		out = append(out, b.Bytes)
	}
}

// encodeAll encodes certificates as PEM blocks without text between them.
func encodeAll(ders [][]byte) []byte {
	var out []byte
	for _, d := range ders {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d})...)
	}
	return out
}

func sourceName(volume string, i int) string { return volume + "-" + strconv.Itoa(i) }

// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Limits of discovery: the size of a response, the wait for a signature, and the difference of the clocks.
const (
	maxClusterInfo   = 1 << 20
	signatureTimeout = 10 * time.Second
	maxClockSkew     = 5 * time.Minute
)

var tokenForm = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)

// JoinRequest says how a machine finds a cluster and verifies its identity.
type JoinRequest struct {
	// Server is https://HOST:PORT, Token a bootstrap token.
	Server, Token string
	// CAHashes pin public keys, "sha256:HEX". The cluster's CA must have one of them.
	CAHashes []string
}

// Check returns an error if the request cannot be one of `keelson token create --print-join-command`.
func (q JoinRequest) Check() error {
	_, _, err := q.validate()
	return err
}

func (q JoinRequest) validate() (id, secret string, err error) {
	m := tokenForm.FindStringSubmatch(q.Token)
	if m == nil {
		return "", "", errors.New("--token is not of the form ID.SECRET, 6 and 16 small letters and digits: `keelson " +
			"token create` makes one")
	}
	u, err := url.Parse(q.Server)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" {
		return "", "", fmt.Errorf("server %q is not of the form https://HOST:PORT", q.Server)
	}
	if len(q.CAHashes) == 0 {
		return "", "", errors.New("--ca-hash is missing: without it this machine cannot distinguish the cluster from " +
			"one that pretends to be it; `keelson token create --print-join-command` prints it")
	}
	for _, h := range q.CAHashes {
		if sum, ok := strings.CutPrefix(h, "sha256:"); !ok || len(sum) != 64 {
			return "", "", fmt.Errorf("--ca-hash %q is not of the form sha256:HEX, 64 digits", h)
		}
	}
	return m[1], m[2], nil
}

// discover verifies the cluster as kubeadm does: the public ConfigMap cluster-info must be signed with the token, its
// CA must be pinned, and the server must then present a certificate of that CA. It returns a client configuration with
// the token.
func (q JoinRequest) discover(ctx context.Context) (*rest.Config, error) {
	id, secret, err := q.validate()
	if err != nil {
		return nil, err
	}
	// nothing is trusted before the signature and the hash are verified
	insecure := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	var text string
	// a new token's signature appears after a moment
	for end := time.Now().Add(signatureTimeout); ; time.Sleep(200 * time.Millisecond) {
		info, err := q.clusterInfo(ctx, insecure)
		if err != nil {
			return nil, err
		}
		text = info.Data[infoFile]
		signature, ok := info.Data[signatureOf+id]
		if ok {
			if !signedBy(text, signature, secret) {
				return nil, fmt.Errorf("the secret of token %s is wrong: what the server says is not signed with it; "+
					"`keelson token create` makes another", id)
			}
			break
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return nil, fmt.Errorf("the server knows no token %s: it has expired, was deleted, or is another "+
				"cluster's; `keelson token create` makes one", id)
		}
	}
	file, err := clientcmd.Load([]byte(text))
	if err != nil || len(file.Clusters) != 1 {
		return nil, fmt.Errorf("config map %s/%s of the server holds no kubeconfig with one cluster (%w)",
			metav1.NamespacePublic, clusterInfo, err)
	}
	var of *clientcmdapi.Cluster
	for _, of = range file.Clusters {
	}
	hashes, err := hashesOf(of.CertificateAuthorityData)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(hashes, q.pins) {
		return nil, fmt.Errorf("this is another cluster, or somebody between: its authority is %s, --ca-hash says %s",
			strings.Join(hashes, ", "), strings.Join(q.CAHashes, ", "))
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(of.CertificateAuthorityData)
	again, err := q.clusterInfo(ctx, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
	if err != nil {
		return nil, err
	}
	if again.Data[infoFile] != text {
		return nil,
			errors.New("the server said something else before it had shown its certificate: somebody is between")
	}
	return &rest.Config{
		Host:        q.Server,
		BearerToken: q.Token,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: of.CertificateAuthorityData,
		},
	}, nil
}

// clusterInfo reads the ConfigMap cluster-info without credentials.
func (q JoinRequest) clusterInfo(ctx context.Context, secret *tls.Config) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	path := strings.TrimSuffix(q.Server, "/") + "/api/v1/namespaces/" + metav1.NamespacePublic + "/configmaps/" +
		clusterInfo
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{TLSClientConfig: secret, Proxy: http.ProxyFromEnvironment}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		if invalid, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return nil, fmt.Errorf("the server's certificate is not good for %s: %w", q.Server, invalid.Err)
		}
		return nil, fmt.Errorf("the server is not reachable at %s: %w; is it started with --bind-address, and does a "+
			"firewall let port and address through?", q.Server, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if said, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		if off := time.Since(said).Round(time.Second); off.Abs() > maxClockSkew {
			return nil, fmt.Errorf("this machine's clock says %s, the server's %s: they are %s apart; set the clock "+
				"and try again", time.Now().UTC().Format(time.RFC3339), said.UTC().Format(time.RFC3339), off.Abs())
		}
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return nil, fmt.Errorf("the server at %s shows strangers no %s/%s (%s): `keelson token create` there makes it",
			q.Server, metav1.NamespacePublic, clusterInfo, resp.Status)
	default:
		return nil, fmt.Errorf("the server at %s answers %s", q.Server, resp.Status)
	}
	cm := &corev1.ConfigMap{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxClusterInfo)).Decode(cm); err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", clusterInfo, q.Server, err)
	}
	return cm, nil
}

// signedBy verifies a detached JSON web signature (HS256, RFC 7515 appendix F) of content.
func signedBy(content, signature, secret string) bool {
	parts := strings.Split(signature, ".")
	if len(parts) != 3 || parts[1] != "" {
		return false
	}
	header, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil {
		return false
	}
	var h struct {
		Algorithm string `json:"alg"`
	}
	if json.Unmarshal(header, &h) != nil || h.Algorithm != "HS256" {
		return false
	}
	got, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	// Write of a hash never fails
	_, _ = mac.Write([]byte(parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(content))))
	return hmac.Equal(got, mac.Sum(nil))
}

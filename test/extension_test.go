// SPDX-License-Identifier: Apache-2.0

package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// startExtension is the command "extension DATA ADDRESS": an aggregated API server of the group extended.test, and a
// webhook /judge that allows everything, until the script ends. It serves with certificates of the cluster's authority,
// and lets in whom the front proxy's authority has signed, both as they are in DATA at each connection. Its port is in
// $EXTENSION.
func startExtension(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: extension DATA ADDRESS")
	}
	dir := filepath.Join(args[0], "pki")
	listener, err := net.Listen("tcp", net.JoinHostPort(args[1], "0"))
	ts.Check(err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(extend))
	_ = server.Listener.Close() // the one of the loopback interface
	server.Listener = listener
	server.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			own, err := signedNow(dir, args[1])
			if err != nil {
				return nil, err
			}
			callers := x509.NewCertPool()
			pem, err := os.ReadFile(filepath.Join(dir, "front-proxy-ca.crt"))
			callers.AppendCertsFromPEM(pem)
			return &tls.Config{
				MinVersion:   tls.VersionTLS12,
				Certificates: []tls.Certificate{own},
				ClientAuth:   tls.VerifyClientCertIfGiven,
				ClientCAs:    callers,
			}, err
		},
	}
	server.StartTLS()
	ts.Defer(server.Close)
	ts.Setenv("EXTENSION", strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
}

// signedNow is a certificate for an address, from the authority in a directory as it is.
func signedNow(dir, address string) (tls.Certificate, error) {
	var none tls.Certificate
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return none, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return none, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "extension"},
		DNSNames:     []string{"extension.default.svc"},
		IPAddresses:  []net.IP{net.ParseIP(address)},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Minute),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// extend answers as the aggregated API server and as the webhook.
func extend(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/judge" {
		var review struct {
			Request struct {
				UID string `json:"uid"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",`+
			`"response":{"uid":%q,"allowed":true}}`, review.Request.UID)
		return
	}
	if len(r.TLS.PeerCertificates) == 0 {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"APIResourceList","groupVersion":"extended.test/v1",`+
		`"resources":[{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["list"],`+
		`"shortNames":[%q]}]}`, r.TLS.PeerCertificates[0].Subject.CommonName+" of "+
		r.TLS.PeerCertificates[0].Issuer.CommonName+" for "+r.Header.Get("X-Remote-User"))
}

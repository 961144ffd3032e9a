// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/cluster/datadir"
	"keelson/pki"
)

// cluster serves what a machine reads that joins: cluster-info, and the node "worker" as ca's server at /. node answers
// for the node.
func cluster(t *testing.T, ca *pki.Authority, node http.HandlerFunc) JoinRequest {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters[""] = &clientcmdapi.Cluster{Server: "https://x", CertificateAuthorityData: ca.CertPEM()}
	text, err := clientcmd.Write(*file)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/nodes/worker", node)
	mux.HandleFunc("/api/v1/namespaces/kube-public/configmaps/cluster-info", func(
		w http.ResponseWriter, _ *http.Request,
	) {
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: map[string]string{
			infoFile:               string(text),
			signatureOf + "abcdef": sign(string(text), "0123456789abcdef"),
		}})
	})
	pair, err := ca.Server("s", pki.Subject{Name: "s", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(mux)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} // a test's
	server.StartTLS()
	t.Cleanup(server.Close)
	hashes, err := hashesOf(ca.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	return JoinRequest{Server: server.URL, Token: testToken, CAHashes: hashes}
}

// status answers with an API Status of that code and reason.
func status(code int, reason metav1.StatusReason) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure,
			Reason:   reason,
			Code:     int32(code), // an HTTP code
		})
	}
}

// nodeIs answers with the node and its condition Ready.
func nodeIs(ready corev1.ConditionStatus) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "worker"},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
			},
		})
	}
}

// nodeKubeconfig is that of the node "worker", which has joined at https://x.
func nodeKubeconfig(t *testing.T, ca *pki.Authority) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubelet.kubeconfig")
	pair, err := ca.Client("kubelet", pki.Subject{Name: "system:node:worker"})
	if err == nil {
		var text []byte
		if text, err = pki.Kubeconfig("c", "https://x", "", ca.CertPEM(), pair); err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestJoinAgain: a node that has joined continues when its token has expired, and at another address of its cluster; an
// address where its cluster does not answer changes nothing, and a server's directory does not become a node's.
func TestJoinAgain(t *testing.T) {
	ca, err := pki.Open("", "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open("", "ca")
	if err != nil {
		t.Fatal(err)
	}
	path := nodeKubeconfig(t, ca)
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	joins := func(q JoinRequest, of *pki.Authority, want, server string) {
		t.Helper()
		hashes, err := hashesOf(of.CertPEM())
		if err != nil {
			t.Fatal(err)
		}
		q.CAHashes = hashes
		q.Token = "expire.d123456789abcdef"
		_, err = q.Join(t.Context(), dir, "worker", path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("join at %s: %v, want %q", q.Server, err, want)
		}
		if now, err := LoadKubeconfig(path); err != nil || now.Host != server {
			t.Errorf("the kubeconfig has %+v, %v, want the server %s", now, err, server)
		}
	}
	node := nodeIs(corev1.ConditionTrue)
	joins(JoinRequest{Server: "https://x"}, ca, "", "https://x")
	joins(cluster(t, other, node), ca, "the server's certificate is not good", "https://x")
	joins(JoinRequest{Server: "https://127.0.0.1:1"}, ca, "the server is not reachable", "https://x")
	moved := cluster(t, ca, node)
	joins(moved, ca, "", moved.Server)
	if datadir.Exists(dir.Sub(BootstrapFile)) {
		t.Error("a token was stored that was not needed")
	}
	if err := os.MkdirAll(dir.Sub("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.Sub("pki/ca.key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	joins(moved, ca, "holds a cluster of its own", moved.Server)
}

// TestJoin: a machine joins a cluster that has no such node, or a lost one, and joins again; what stands in the way is
// said, and nothing is written then.
func TestJoin(t *testing.T) {
	keys := t.TempDir()
	ca, err := pki.Open(keys, "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open("", "ca")
	if err != nil {
		t.Fatal(err)
	}
	ends, err := pki.OpenFor(keys, "ca", time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	absent := status(http.StatusNotFound, metav1.StatusReasonNotFound)
	for name, c := range map[string]struct {
		node       http.HandlerFunc
		kubeconfig string // of an earlier join
		server     bool   // the directory is that of a server
		want       string // empty: it joins
	}{
		"new":                   {node: absent},
		"may not read nodes":    {node: status(http.StatusForbidden, metav1.StatusReasonForbidden)},
		"lost":                  {node: nodeIs(corev1.ConditionUnknown)},
		"certificate expired":   {node: nodeIs(corev1.ConditionTrue), kubeconfig: nodeKubeconfig(t, ends)},
		"name taken":            {node: nodeIs(corev1.ConditionTrue), want: `there is a node "worker" already`},
		"token expired":         {node: status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized), want: "does not take the token"},
		"server broken":         {node: status(http.StatusBadRequest, metav1.StatusReasonBadRequest), want: "look for node worker"},
		"of another cluster":    {node: absent, kubeconfig: nodeKubeconfig(t, other), want: "is a node of another cluster"},
		"directory of a server": {node: absent, server: true, want: "holds a cluster of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			q := cluster(t, ca, c.node)
			dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
			if c.server {
				if err := os.MkdirAll(dir.Sub("pki"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(dir.Sub("pki/ca.key"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.kubeconfig == "" {
				c.kubeconfig = filepath.Join(t.TempDir(), "none")
			}
			got, err := q.Join(t.Context(), dir, "worker", c.kubeconfig)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				if datadir.Exists(dir.Sub(BootstrapFile)) {
					t.Error("a bootstrap kubeconfig was written")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			to, err := LoadKubeconfig(got.Sub(BootstrapFile))
			if err != nil || to == nil || to.Host != q.Server || to.BearerToken != testToken ||
				string(to.CAData) != string(ca.CertPEM()) {
				t.Errorf("the bootstrap kubeconfig has %+v, %v", to, err)
			}
		})
	}
}

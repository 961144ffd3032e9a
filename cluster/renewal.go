// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
	"keelson/apiserver"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client"
	"keelson/cluster/datadir"
	"keelson/cluster/version"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/store"
)

// certificates describes the certificates that this process has in use.
func (c *Cluster) certificates() []pki.Info {
	return pki.All(c.keys.leaves(c.cfg), c.otherCertificates)
}

// newKeeper returns the keeper of the certificates that this process has in use (docs/decisions/0183). changed
// publishes new ones, warn is called for those that expire.
func (c *Cluster) newKeeper(changed func(context.Context) error, warn func(pki.Info, string)) *pki.Keeper {
	k := &pki.Keeper{
		Leaves: c.keys.leaves(c.cfg),
		Others: c.otherCertificates,
		Warn:   warn,
		Log:    c.log.With(eventlog.Key, eventlog.Certificates),
	}
	if c.dir != "" { // the clusters of tests have no directory
		k.Dir = c.dir.Sub("pki")
		k.Sources = c.keys.sources()
		k.Changed = changed
	}
	return k
}

// otherCertificates describes those that the keeper does not renew.
func (c *Cluster) otherCertificates() []pki.Info {
	return append(c.keys.authorities(), c.cfg.ownersFiles()...)
}

// useChangedKeys lets the server use its keys as they are now, and publishes them: in the store, to nodes, aggregated
// servers and machines that join, and in the kubeconfigs. Everything is written only if it differs.
func (c *Cluster) useChangedKeys(ctx context.Context, made assembled, st store.Store) error {
	if err := c.keys.useChanged(made.tokens, &c.cfg.API.Tokens); err != nil {
		return err
	}
	keys, err := c.keys.serverKeys(&c.cfg.API.Tokens)
	if err != nil {
		return err
	}
	errs := []error{keepFingerprints(ctx, st, true, keys, c.log)}
	for _, obj := range append(c.keys.kubeletClientInfo(), c.keys.authenticationInfo()) {
		if own, ok := obj.(kind.Object); ok {
			errs = append(errs, made.server.Ensure(ctx, own))
		}
	}
	signer := inProcess(made.server, authn.ServiceAccountUser(metav1.NamespaceSystem, "bootstrap-signer", "",
		auth.InProcess), "keelson-certificates/"+version.Kubernetes)
	return errors.Join(append(errs,
		refreshClusterInfo(ctx, signer, c.keys.ca),
		c.keys.writeKubeconfigs(c.dir, c.URL(), c.cfg.MergedKubeconfig))...)
}

// retiredAnnotation lists the certificates that CAs no longer trust.
func retiredAnnotation(of ...*pki.Authority) map[string]string {
	var sums []string
	for _, a := range of {
		certs, _ := pki.Certificates(a.RetiredPEM()) // none
		for _, c := range certs {
			sum := sha256.Sum256(c.Raw)
			sums = append(sums, hex.EncodeToString(sum[:]))
		}
	}
	if len(sums) == 0 {
		return nil
	}
	return map[string]string{apiserver.RetiredAnnotation: strings.Join(sums, " ")}
}

// authorities describes the CAs of the cluster.
func (k *keys) authorities() []pki.Info {
	var out []pki.Info
	for _, a := range []*pki.Authority{k.ca, k.kubeletClientCA, k.proxyCA} {
		out = append(out, a.Info())
	}
	return out
}

// ownersFiles describes the certificates in files that flags name.
func (c Config) ownersFiles() []pki.Info {
	var out []pki.Info
	add := func(name, path string) {
		if path != "" {
			out = append(out, pki.DescribeFile(name, path, pki.ByOwner)...)
		}
	}
	authentication := c.API.Authentication
	add("tls-cert-file", c.API.Serving.CertFile)
	for i, path := range c.API.Serving.SNIFiles() {
		add(fmt.Sprintf("tls-sni-cert-key-%d", i+1), path)
	}
	add("client-ca-file", authentication.ClientCAFile)
	add("requestheader-client-ca-file", authentication.RequestHeader.CAFile)
	add("oidc-ca-file", authentication.OIDC.CAFile)
	add("etcd-cafile", c.Etcd.CAFile)
	add("etcd-certfile", c.Etcd.CertFile)
	return out
}

// certificates is the role that renews the certificates and warns of those that expire, also by an event about the
// namespace kube-system.
func (s *site) certificates() (run.Func, error) {
	cl := s.connect(user("system:kube-controller-manager"), "keelson-certificates/"+version.Kubernetes)
	events := cl.Events("keelson-certificates", "", s.log.With(eventlog.Key, eventlog.Certificates))
	about := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	keeper := s.server.c.newKeeper(func(ctx context.Context) error {
		return s.server.c.useChangedKeys(ctx, s.server.assembled, s.server.store)
	}, func(_ pki.Info, text string) {
		events.Event(about, corev1.EventTypeWarning, "CertificateExpires", text)
	})
	return run.Together(nil, run.Part{Name: "events", Run: events.Run}, run.Part{Name: "renewal", Run: keeper.Run}), nil
}

// certificateMetric is when each certificate expires.
type certificateMetric struct{ all func() []pki.Info }

var certificateExpiration = prometheus.NewDesc("keelson_certificate_expiration_seconds",
	"When a certificate of the cluster, or of a file that a flag names, expires, in seconds since 1970.",
	[]string{"name"}, nil)

// Describe implements prometheus.Collector.
func (certificateMetric) Describe(out chan<- *prometheus.Desc) { out <- certificateExpiration }

// Collect implements prometheus.Collector.
func (m certificateMetric) Collect(out chan<- prometheus.Metric) {
	for _, info := range m.all() {
		if info.Problem == "" {
			out <- prometheus.MustNewConstMetric(certificateExpiration, prometheus.GaugeValue,
				float64(info.Expires.Unix()), info.Name)
		}
	}
}

// certificatesPath is where the API server serves the certificates that it has in use.
const certificatesPath = "/keelson/v1/certificates"

func serveCertificates(all func() []pki.Info) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(all()) // an error is the connection's
	})
}

// Certificates lists the certificates of a data directory, and those that a running API server has in use beside them.
func Certificates(ctx context.Context, dir datadir.Dir) ([]pki.Info, error) {
	dir, err := dir.Resolve()
	if err != nil {
		return nil, datadir.Unreadable(err)
	}
	list, err := pki.List(dir.Sub("pki"))
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, datadir.NoCluster(dir)
	}
	pid, err := dir.Running()
	if err != nil || pid == 0 {
		return list, err
	}
	to, err := datadir.ReadKubeconfig(dir, "")
	if err != nil {
		return nil, err
	}
	cl, err := client.Remote(to, "keelson-certs/"+version.Kubernetes)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return addServers(ctx, cl, list), nil
}

// addServers adds to list what the server has in use from elsewhere. Errors are ignored: the server may be starting, or
// older.
func addServers(ctx context.Context, cl *client.Client, list []pki.Info) []pki.Info {
	b, err := cl.Discovery().RESTClient().Get().AbsPath(certificatesPath).DoRaw(ctx)
	if err != nil {
		return list
	}
	var others []pki.Info
	if err := json.Unmarshal(b, &others); err != nil {
		return list
	}
	for _, other := range others {
		if other.Renewal == pki.ByOwner {
			list = append(list, other)
		}
	}
	pki.SortInfos(list)
	return list
}

// RenewCertificates issues new certificates with the same names in a data directory, and updates its kubeconfigs. A
// running cluster takes them over. No names: all that can be renewed so.
func RenewCertificates(dir datadir.Dir, names []string) ([]pki.Info, error) {
	dir, err := dir.Resolve()
	if err != nil {
		return nil, datadir.Unreadable(err)
	}
	done, err := pki.Renew(dir.Sub("pki"), names, map[string]string{"admin": dir.Kubeconfig()})
	if err != nil && strings.Contains(err.Error(), "permission denied") {
		err = datadir.Unreadable(err)
	}
	return done, err
}

// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/client"
	"keelson/cluster/datadir"
	"keelson/cluster/version"
	"keelson/pki"
)

// Metric is when each certificate expires.
type Metric struct{ All func() []pki.Info }

var certificateExpiration = prometheus.NewDesc("keelson_certificate_expiration_seconds",
	"When a certificate of the cluster, or of a file that a flag names, expires, in seconds since 1970.",
	[]string{"name"}, nil)

// Describe implements prometheus.Collector.
func (Metric) Describe(out chan<- *prometheus.Desc) { out <- certificateExpiration }

// Collect implements prometheus.Collector.
func (m Metric) Collect(out chan<- prometheus.Metric) {
	for _, info := range m.All() {
		if info.Problem == "" {
			out <- prometheus.MustNewConstMetric(certificateExpiration, prometheus.GaugeValue,
				float64(info.Expires.Unix()), info.Name)
		}
	}
}

// ListPath is where the API server serves the certificates that it has in use.
const ListPath = "/keelson/v1/certificates"

// ServeList serves ListPath.
func ServeList(all func() []pki.Info) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(all()) // an error is the connection's
	})
}

// List lists the certificates of a data directory, and those that a running API server uses in addition.
func List(ctx context.Context, dir datadir.Dir) ([]pki.Info, error) {
	dir, err := resolved(dir)
	if err != nil {
		return nil, err
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
	ctx, cancel := context.WithTimeout(ctx, AnswerLimit)
	defer cancel()
	return AddServers(ctx, cl, list), nil
}

// resolved is the directory of a cluster that has been started once.
func resolved(dir datadir.Dir) (datadir.Dir, error) {
	found, err := dir.Resolve()
	if errors.Is(err, fs.ErrNotExist) {
		return "", datadir.NoCluster(dir)
	}
	return found, datadir.Unreadable(err)
}

// AddServers adds to list what the server has in use from elsewhere. Errors are ignored: the server may be starting, or
// older.
func AddServers(ctx context.Context, cl *client.Client, list []pki.Info) []pki.Info {
	b, err := cl.Discovery().RESTClient().Get().AbsPath(ListPath).DoRaw(ctx)
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

// Renew issues new certificates with the same names in a data directory, and updates its kubeconfigs. A
// running cluster takes them over. No names: all that can be renewed so.
func Renew(dir datadir.Dir, names []string) ([]pki.Info, error) {
	dir, err := resolved(dir)
	if err != nil {
		return nil, err
	}
	done, err := pki.Renew(dir.Sub("pki"), names, map[string]string{"admin": dir.Kubeconfig()})
	if err != nil && strings.Contains(err.Error(), "permission denied") {
		err = datadir.Unreadable(err)
	}
	return done, err
}

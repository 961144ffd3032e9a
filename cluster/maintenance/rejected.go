// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"

	"keelson/apiserver/configreload"
)

// ConfigurationPath is where the API server serves which configuration files are not in use because they are wrong.
const ConfigurationPath = "/keelson/v1/configuration"

// ServeRejected serves them.
func ServeRejected(rejected *configreload.Rejected) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(rejected.List()) // an error is the connection's
	})
}

// rejectedFiles has a line for each of them. Errors are ignored: older servers do not have the path.
func rejectedFiles(ctx context.Context, c rest.Interface) []string {
	b, err := c.Get().AbsPath(ConfigurationPath).DoRaw(ctx)
	if err != nil {
		return nil
	}
	var all []configreload.Rejection
	if err := json.Unmarshal(b, &all); err != nil {
		return nil
	}
	var out []string
	for _, r := range all {
		out = append(out, fmt.Sprintf("%-9s %s is not in use: %s; the previous content stays in use", r.Name, r.File,
			strings.ReplaceAll(r.Error, "\n", "; ")))
	}
	return out
}

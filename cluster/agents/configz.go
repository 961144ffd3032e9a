// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Settings are a component's configuration under Kubernetes' field names. Fields without effect in Keelson are left
// out.
type Settings = map[string]any

// Configz serves a component's configuration at /configz, under the name that Kubernetes' component uses.
func Configz(name string, of Settings) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		b, err := json.Marshal(Settings{name: of})
		if err != nil {
			http.Error(w, fmt.Sprintf("error: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(b) // the client may be gone
	}
}

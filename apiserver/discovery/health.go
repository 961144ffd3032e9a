// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apiversion "k8s.io/apimachinery/pkg/version"

	"keelson/apiserver/wire"
)

// Check is one health check; nil means healthy.
type Check struct {
	Name string
	Run  func(*http.Request) error
}

// Health serves path (livez, readyz, healthz) and path/<check> on mux: "ok", or 500 with the failed checks. ?verbose
// lists every check, ?exclude= leaves one out. probes counts the results.
func Health(mux *http.ServeMux, path string, checks []Check, probes *Probes) {
	mux.HandleFunc("/"+path, func(w http.ResponseWriter, r *http.Request) { health(w, r, path, checks, probes) })
	for _, c := range checks {
		mux.HandleFunc("/"+path+"/"+c.Name, func(w http.ResponseWriter, r *http.Request) {
			if err := c.Run(r); err != nil {
				http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
				return
			}
			writeText(w, http.StatusOK, "ok")
		})
	}
}

func health(w http.ResponseWriter, r *http.Request, path string, checks []Check, probes *Probes) {
	excluded := r.URL.Query()["exclude"]
	var lines strings.Builder
	failed := false
	for _, check := range checks {
		if slices.Contains(excluded, check.Name) {
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", check.Name)
			continue
		}
		if err := check.Run(r); err != nil {
			failed = true
			probes.observe(path, check.Name, false)
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", check.Name)
			continue
		}
		probes.observe(path, check.Name, true)
		fmt.Fprintf(&lines, "[+]%s ok\n", check.Name)
	}
	if unknown := unknownChecks(excluded, checks); len(unknown) > 0 {
		fmt.Fprintf(&lines, "warn: some health checks cannot be excluded: no matches for %s\n",
			strings.Join(unknown, ","))
	}
	switch _, verbose := r.URL.Query()["verbose"]; {
	case failed:
		writeText(w, http.StatusInternalServerError, lines.String()+path+" check failed\n")
	case verbose:
		writeText(w, http.StatusOK, lines.String()+path+" check passed\n")
	default:
		writeText(w, http.StatusOK, "ok")
	}
}

// unknownChecks are the excluded checks that do not exist, quoted.
func unknownChecks(excluded []string, checks []Check) []string {
	var out []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(excluded))) {
		if !slices.ContainsFunc(checks, func(c Check) bool { return c.Name == name }) {
			out = append(out, strconv.Quote(name))
		}
	}
	return out
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // the client may be gone
}

// Version serves /version.
func Version(mux *http.ServeMux, info apiversion.Info) error {
	b, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return fmt.Errorf("encode version: %w", err)
	}
	tell := func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			wire.WriteError(w, r, wire.MethodNotAllowed())
			return
		}
		if !wire.Accepts(r, wire.TypeJSON) {
			wire.WriteError(w, r, wire.NotAcceptableRoute(wire.TypeJSON))
			return
		}
		writeJSON(w, http.StatusOK, b)
	}
	mux.HandleFunc("/version", tell)
	mux.HandleFunc("/version/{$}", tell)
	return nil
}

// Missing handles unknown paths: with a Status where stored reports that the path may be a resource, else with plain
// text.
func Missing(stored func(path string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if stored(r.URL.Path) {
			wire.WriteError(w, r, wire.NotFoundPath())
			return
		}
		http.NotFound(w, r)
	})
}

// Index serves "/", the list of paths. missing handles all other paths.
func Index(paths func() []string, missing http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" && r.URL.Path != "/index.html" {
			missing.ServeHTTP(w, r)
			return
		}
		list := slices.Clone(paths())
		slices.Sort(list)
		b, err := json.MarshalIndent(map[string][]string{"paths": slices.Compact(list)}, "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeJSON(w, http.StatusOK, b)
	})
}

func writeJSON(w http.ResponseWriter, code int, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(b) // the client may be gone
}

// Paths lists the paths of discovery documents, for the index.
func Paths(gvs []string) []string {
	out := []string{"/api", "/apis"}
	for _, gv := range gvs {
		group, _, named := strings.Cut(gv, "/")
		if !named {
			out = append(out, "/api/"+gv)
			continue
		}
		out = append(out, "/apis/"+group, "/apis/"+gv)
	}
	return out
}

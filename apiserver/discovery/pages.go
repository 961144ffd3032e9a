// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"keelson/apiserver/wire"
)

const pagesGroup = "config.k8s.io"

// page has the common fields of Statusz and Flagz.
type page struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   nameOnly `json:"metadata"`
}

type nameOnly struct {
	Name string `json:"name"`
}

type statusz struct {
	page
	StartTime        string   `json:"startTime"`
	UptimeSeconds    int64    `json:"uptimeSeconds"`
	GoVersion        string   `json:"goVersion"`
	BinaryVersion    string   `json:"binaryVersion"`
	EmulationVersion string   `json:"emulationVersion"`
	Paths            []string `json:"paths"`
}

type flagz struct {
	page
	Flags map[string]string `json:"flags,omitempty"`
}

// Statusz serves /statusz: start time, version and paths of a component.
func Statusz(mux *http.ServeMux, component string, info apiversion.Info, begin time.Time, paths []string) {
	version := info.Major + "." + info.Minor
	text := func() string {
		up := time.Since(begin)
		return fmt.Sprintf("\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: "+
			"%s\nEmulation version: %[6]s\nPaths: %[7]s\n",
			begin.UTC().Format(time.UnixDate), int(up.Hours()), int(up.Minutes())%60, int(up.Seconds())%60,
			info.GoVersion, version, strings.Join(paths, " "))
	}
	mux.Handle("/statusz", servePage(component, "Statusz", text, func(p page) any {
		return statusz{
			page:             p,
			StartTime:        begin.UTC().Format(time.RFC3339),
			UptimeSeconds:    int64(time.Since(begin).Seconds()),
			GoVersion:        info.GoVersion,
			BinaryVersion:    version,
			EmulationVersion: version,
			Paths:            paths,
		}
	}))
}

// Flagz serves /flagz: a component's flags with their values.
func Flagz(mux *http.ServeMux, component string, flags func() map[string]string) {
	text := func() string {
		var b strings.Builder
		all := flags()
		for _, name := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintf(&b, "%s: %s\n", name, all[name])
		}
		return b.String()
	}
	mux.Handle("/flagz", servePage(component, "Flagz", text, func(p page) any {
		return flagz{page: p, Flags: flags()}
	}))
}

// servePage serves a page as text, or as an object of config.k8s.io v1beta1 or v1alpha1 when the client accepts that.
func servePage(component, kind string, text func() string, object func(page) any) http.Handler {
	name := strings.ToLower(kind)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, plainText, err := wire.NegotiatePage(r, func(w wire.MediaTypeOptions) bool {
			return w.Group == pagesGroup && w.As == kind && (w.Version == "v1beta1" || w.Version == "v1alpha1")
		})
		if err != nil {
			wire.WriteError(w, r, err)
			return
		}
		if plainText {
			b := fmt.Sprintf("\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no "+
				"formatting compatibility guarantees "+
				"and is for debugging purposes only.\n%s", component, name, text())
			wire.WriteParts(w, r, http.StatusOK, "text/plain; charset=utf-8", len(b), func(yield func([]byte) bool) {
				yield([]byte(b))
			})
			return
		}
		b, err := encodePage(object(page{kind, pagesGroup + "/" + want.Version, nameOnly{component}}), want)
		if err != nil {
			wire.WriteError(w, r, err)
			return
		}
		if want.Version == "v1alpha1" {
			w.Header().Set("Warning",
				`299 - "This version of the `+name+` endpoint is deprecated. Please use a newer version."`)
		}
		contentType := fmt.Sprintf("%s;g=%s;v=%s;as=%s", want.Media, pagesGroup, want.Version, kind)
		wire.WriteParts(w, r, http.StatusOK, contentType, len(b), func(yield func([]byte) bool) { yield(b) })
	})
}

func encodePage(p any, want wire.MediaTypeOptions) ([]byte, error) {
	if want.Pretty {
		return json.MarshalIndent(p, "", "  ")
	}
	b, err := json.Marshal(p)
	if err == nil && want.Media == wire.YAML {
		return yaml.JSONToYAML(b)
	}
	return append(b, '\n'), err
}

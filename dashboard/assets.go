// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
)

// compressed has the page's files, as `make ui` makes them.
//
//go:embed page/*.gz
var compressed embed.FS

// kinds are the media types of the page's files.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// asset is a file of the page.
type asset struct {
	kind string
	gzip []byte
}

// readAssets maps the paths of the page to its files.
func readAssets() (map[string]asset, error) {
	const dir = "page"
	entries, err := compressed.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the page: %w", err)
	}
	out := map[string]asset{}
	for _, e := range entries {
		data, err := compressed.ReadFile(path.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the page: %w", err)
		}
		name := strings.TrimSuffix(e.Name(), ".gz")
		kind, ok := kinds[path.Ext(name)]
		if !ok {
			return nil, fmt.Errorf("the page has a file %s of an unknown kind", name)
		}
		out["/"+name] = asset{kind: kind, gzip: data}
	}
	out["/"] = out["/index.html"]
	return out, nil
}

// asset serves a file of the page.
func (d *Dashboard) asset(w http.ResponseWriter, r *http.Request) {
	a, ok := d.assets[r.URL.Path]
	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "the page has no such file")
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		refuse(w, http.StatusMethodNotAllowed, "the page can only be read")
		return
	}
	w.Header().Set("Content-Type", a.kind)
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(a.gzip) // an error means that the client is gone
		return
	}
	plain, err := gzip.NewReader(bytes.NewReader(a.gzip))
	if err != nil {
		refuse(w, http.StatusInternalServerError, "the page cannot be decompressed")
		return
	}
	_, _ = io.Copy(w, plain) // the same
}

// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// contentPolicy lets the page run its own programs and styles and talk with its own listener, and nothing else.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// guarded refuses what a foreign page could send, before anything is looked up, and has browsers refuse what a page of
// this origin must never do.
func guarded(host string, next http.Handler) http.Handler {
	names := hostNames(host)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		if r.ContentLength != 0 { // also a body that nothing reads: the server reads it to its end
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
		}
		switch {
		case !slices.Contains(names, r.Host): // a name of someone else's DNS that leads here
			refuse(w, http.StatusMisdirectedRequest, "this address is not the dashboard's: use the printed link")
		case foreign(r):
			refuse(w, http.StatusForbidden, "requests of other pages are refused")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func secure(h http.Header) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Embedder-Policy", "require-corp")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), usb=(), serial=(), payment=()")
	h.Set("Cache-Control", "no-store")
}

// hostNames are the names under which a browser reaches a listener: its address and, on loopback, localhost.
func hostNames(host string) []string {
	names := []string{host}
	name, port, err := net.SplitHostPort(host)
	if ip := net.ParseIP(name); err == nil && ip != nil && ip.IsLoopback() {
		names = append(names, net.JoinHostPort("localhost", port))
	}
	if port == "80" { // browsers leave it out
		for _, n := range slices.Clone(names) {
			names = append(names, strings.TrimSuffix(n, ":80"))
		}
	}
	return names
}

// foreign reports whether a page of another origin made the request. Browsers say so in either header, and pages cannot
// change them; programs send neither. Links from elsewhere may open the page itself.
func foreign(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	for _, origin := range origins {
		if origin != "http://"+r.Host {
			return true
		}
	}
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case site == "" || site == "same-origin" || site == "none":
	case r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == "/":
	default:
		return true
	}
	return isUpgrade(r) && len(origins) == 0 // browsers send it with each websocket
}

// isUpgrade reports whether a request asks for a websocket.
func isUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// plainPaths refuses paths that can be read in two ways, before the multiplexer would redirect them.
func plainPaths(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := segments(r.URL.EscapedPath()); err != nil && r.URL.Path != "/" {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuse writes a Status, as the API server does.
func refuse(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  message,
		Reason:   metav1.StatusReason(strings.ReplaceAll(http.StatusText(code), " ", "")),
		Code:     int32(code), // an HTTP status code
	})
}

// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// linkTime is how long a link lets someone in.
const linkTime = 5 * time.Minute

// mostLinks are remembered after their use, to say what became of them.
const mostLinks = 16

// What is wrong with a link.
var (
	errUsed    = errors.New("this link was used before: the terminal where keelson dashboard runs shows a new one")
	errExpired = errors.New("this link has expired: the terminal where keelson dashboard runs shows a new one")
	errUnknown = errors.New("this link is not known: run keelson dashboard for one that is")
)

// sum stands for a secret, so that comparing says nothing about it.
type sum [sha256.Size]byte

func sumOf(secret string) sum { return sha256.Sum256([]byte(secret)) }

// door knows the link that lets someone in, and the keys of those who came in.
type door struct {
	mu      sync.Mutex
	link    sum // the one that was given out last
	expires time.Time
	used    bool
	old     []sum // replaced links
	keys    map[sum]bool
}

func newDoor() *door { return &door{keys: map[sum]bool{}} }

// open makes a new code and forgets the last one.
func (d *door) open() string {
	code := rand.Text()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.expires.IsZero() {
		d.old = append(d.old, d.link)
		d.old = d.old[max(0, len(d.old)-mostLinks):]
	}
	d.link = sumOf(code)
	d.expires = time.Now().Add(linkTime)
	d.used = false
	return code
}

// enter exchanges a code for a key, once. renew means that no valid link is left and that this one was valid once.
func (d *door) enter(code string) (key string, renew bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	given := sumOf(code)
	late := !time.Now().Before(d.expires)
	switch {
	case slices.Contains(d.old, given):
		return "", late || d.used, errUsed
	case given != d.link || d.expires.IsZero():
		return "", false, errUnknown
	case d.used:
		return "", true, errUsed
	case late:
		return "", true, errExpired
	}
	d.used = true
	key = rand.Text()
	d.keys[sumOf(key)] = true
	return key, false, nil
}

// knows reports whether a key was given out.
func (d *door) knows(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keys[sumOf(key)]
}

// Where a key travels: in a header, and in one of the offered protocols of a websocket, which has no headers of the
// page's choice.
const (
	keyHeader   = "Keelson-Key"
	keyProtocol = "keelson.key."
)

// keyOf is the key of a request, or empty.
func keyOf(r *http.Request) string {
	if key := r.Header.Get(keyHeader); key != "" {
		return key
	}
	for _, protocol := range protocols(r) {
		if key, ok := strings.CutPrefix(protocol, keyProtocol); ok && isUpgrade(r) {
			return key
		}
	}
	return ""
}

// protocols are those that a websocket's client offers.
func protocols(r *http.Request) []string {
	var out []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for protocol := range strings.SplitSeq(line, ",") {
			out = append(out, strings.TrimSpace(protocol))
		}
	}
	return out
}

// keyed lets requests with a key through.
func (d *Dashboard) keyed(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := keyOf(r)
		if key == "" || !d.door.knows(key) {
			refuse(w, http.StatusUnauthorized, "this tab has no valid key: open the link that keelson dashboard gives")
			return
		}
		next(w, r)
	}
}

// enter gives a key for a link's code.
func (d *Dashboard) enter(w http.ResponseWriter, r *http.Request) {
	const most = 1 << 10
	var question struct {
		Code string `json:"code"`
	}
	body := http.MaxBytesReader(w, r.Body, most)
	if err := json.NewDecoder(body).Decode(&question); err != nil {
		refuse(w, http.StatusBadRequest, "the link's code could not be read: open the whole link")
		return
	}
	key, renew, err := d.door.enter(question.Code)
	if renew {
		_, _ = fmt.Fprintf(d.config.Out, "a link was opened that is not valid any more; a new one:\n  %s\n",
			linkTo(r.Host, d.door.open()))
	}
	switch {
	case errors.Is(err, errUnknown):
		refuse(w, http.StatusForbidden, err.Error())
	case err != nil:
		refuse(w, http.StatusGone, err.Error())
	default:
		answer(w, map[string]string{"key": key})
	}
}

// session says what the page shows.
func (d *Dashboard) session(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{
		"context":   d.config.Context,
		"namespace": d.config.Namespace,
		"server":    d.server.base.String(),
		"readOnly":  d.config.ReadOnly,
	})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error means that the client is gone
}

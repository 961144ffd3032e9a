// SPDX-License-Identifier: Apache-2.0

// Package servers lets an agent work with several API servers on one store: it knows their addresses, and sends
// requests to one that is ready. cluster puts it below the clients of agents in processes of their own; client-go above
// it sees one server, which sometimes breaks its connections. It decides nothing about objects.
//
// Invariants:
//  1. A request goes to the current server. It changes only when that server is not ready or does not answer, and
//     another one is ready. Then all connections to the old one are closed, so that watches begin again at the new one.
//  2. Every server proves itself by the CA of the kubeconfig before a request is sent. The server of the kubeconfig has
//     the name that the kubeconfig says, all others have Name. A node's certificate is not accepted.
//  3. The list never becomes empty or longer than Most: the server of the kubeconfig stays in it.
//  4. With one server nothing is sent that the agent did not ask for.
package servers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"keelson/lib/signal"
)

const (
	// Name is the name in the certificate of every API server, as pods know it.
	Name = "kubernetes.default.svc"
	// Most is the maximum number of servers, so that a wrong list costs little.
	Most = 16
	// checkInterval is the interval between checks of the current server, if there is another one.
	checkInterval = 1500 * time.Millisecond
	// checkTimeout is how long a ready server may take to say so.
	checkTimeout = 1500 * time.Millisecond
	// searchPause is the pause after a search that found no ready server.
	searchPause = time.Second
	// maxFile bounds the size of the file.
	maxFile = 64 << 10
)

// Config names the first server, and where the others are kept.
type Config struct {
	// Given is the URL of the kubeconfig: a server or a load balancer in front of several.
	Given string
	// File keeps the other servers for the next start; empty: nothing is kept.
	File string
	Log  *slog.Logger
}

// Servers are the API servers that one process knows. It is safe for concurrent use.
type Servers struct {
	cfg   Config
	given string // host:port; empty: Given allows no other servers
	// suspect asks Run for a check at once.
	suspect signal.Signal
	// searching is held by the one who looks for another server.
	searching sync.Mutex

	mu         sync.Mutex
	learned    []string // host:port, sorted, without given
	endpoint   bool     // given is one of the endpoints too
	alone      bool     // there are no others
	current    string
	changed    chan struct{} // closed when the list changes
	transports []*Transport
	restUntil  time.Time // there is no search before
	noneReady  bool      // the log says so
}

// New returns the server of the kubeconfig and those in the file.
func New(cfg Config) *Servers {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Servers{cfg: cfg, suspect: signal.New(), changed: make(chan struct{})}
	u, err := url.Parse(cfg.Given)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return s // without TLS, or below a path, there is no second server
	}
	s.given = u.Host
	if u.Port() == "" {
		s.given = net.JoinHostPort(u.Hostname(), "443")
	}
	s.current = s.given
	s.learned, err = read(cfg.File, s.given)
	if err != nil {
		cfg.Log.Warn("the list of API servers cannot be read, it is learned again", "err", err)
	}
	return s
}

// kept is the content of the file.
type kept struct {
	Given   string   `json:"given"`
	Servers []string `json:"servers"`
}

// read returns the servers that were learned from the server given.
func read(path, given string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	var k kept
	if err := json.NewDecoder(io.LimitReader(f, maxFile)).Decode(&k); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if k.Given != given {
		return nil, nil // the list of another cluster
	}
	return usable(k.Servers, given), nil
}

// write replaces the file.
func write(path string, k kept) error {
	if path == "" {
		return nil
	}
	body, err := json.Marshal(k)
	if err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid()) // agents of one data directory share the file
	if err := os.WriteFile(tmp, body, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// usable returns the addresses that may be another machine's, sorted, at most Most with the given one.
func usable(all []string, given string) []string {
	var out []string
	for _, text := range all {
		at, err := parse(text)
		if err != nil || at == given {
			continue
		}
		out = append(out, at)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), Most-1)]
}

// List returns the URL's host of each server, the given one first.
func (s *Servers) List() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listLocked()
}

// URLs are those of List; none if the given URL allows no other servers.
func (s *Servers) URLs() []string {
	if s.given == "" {
		return nil
	}
	out := s.List()
	for i, host := range out {
		out[i] = "https://" + host
	}
	return out
}

func (s *Servers) listLocked() []string { return append([]string{s.given}, s.learned...) }

// Hosts returns the servers that each get a tunnel, and a channel that is closed when they have changed. The given one
// is among them: the endpoints may be out of reach.
func (s *Servers) Hosts() ([]string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listLocked(), s.changed
}

// set replaces the learned servers by the endpoints. An empty list is ignored: somebody has sent it.
func (s *Servers) set(endpoints []string) {
	if s.given == "" || len(endpoints) == 0 {
		return
	}
	next := usable(endpoints, s.given)
	s.mu.Lock()
	if s.alone {
		next = nil
	}
	isEndpoint := slices.Contains(endpoints, s.given)
	if slices.Equal(next, s.learned) && isEndpoint == s.endpoint {
		s.mu.Unlock()
		return
	}
	s.learned = next
	s.endpoint = isEndpoint
	all := append(s.listLocked(), s.current)
	transports := slices.Clone(s.transports)
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	for _, t := range transports {
		t.keep(all)
	}
	s.cfg.Log.Info("the API servers", "given", s.given, "others", next)
	if err := write(s.cfg.File, kept{Given: s.given, Servers: next}); err != nil {
		s.cfg.Log.Warn("the list of API servers is not kept for the next start", "err", err)
	}
}

// stayAlone drops all servers but the given one, for good.
func (s *Servers) stayAlone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = true
	s.learned = nil
	s.current = s.given
}

// now returns the current server, and whether there is another one.
func (s *Servers) now() (host string, several bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, len(s.learned) > 0
}

// Run checks the current server, and changes to another one when it is not ready. It returns when ctx ends.
func (s *Servers) Run(ctx context.Context, ready func()) error {
	ready()
	for {
		_, changed := s.Hosts()
		host, several := s.now()
		var due <-chan time.Time
		if several {
			due = time.After(checkInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			continue
		case <-s.suspect.C():
		case <-due:
		}
		if !several {
			continue
		}
		switch err := s.check(ctx, host); {
		case err == nil:
			s.mu.Lock()
			s.noneReady = false
			s.mu.Unlock()
		case ctx.Err() == nil:
			s.leave(ctx, host, err)
		}
	}
}

// leave changes from a server that failed to one that is ready, and returns the current one: the same if none is.
func (s *Servers) leave(ctx context.Context, failed string, why error) string {
	s.searching.Lock()
	defer s.searching.Unlock()
	s.mu.Lock()
	others := slices.DeleteFunc(s.listLocked(), func(h string) bool { return h == failed })
	now := s.current
	resting := time.Now().Before(s.restUntil)
	s.mu.Unlock()
	if now != failed || resting || len(others) == 0 {
		return now
	}
	next, errs := s.firstReady(ctx, others)
	s.mu.Lock()
	if next == "" {
		s.restUntil = time.Now().Add(searchPause)
		said := s.noneReady
		s.noneReady = true
		s.mu.Unlock()
		if !said {
			s.cfg.Log.Warn("no API server is ready", "current", failed, "why", why, "others", errs)
		}
		return failed
	}
	s.noneReady = false
	s.current = next
	transports := slices.Clone(s.transports)
	s.mu.Unlock()
	s.cfg.Log.Warn("another API server is used", "server", next, "instead of", failed, "why", why)
	for _, t := range transports {
		t.drop(failed)
	}
	return next
}

// firstReady returns the server that first says that it is ready; "": none, for the reasons in the error.
func (s *Servers) firstReady(ctx context.Context, hosts []string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		host string
		err  error
	}
	answers := make(chan answer, len(hosts))
	for _, host := range hosts {
		go func() { answers <- answer{host, s.check(ctx, host)} }() // ends with the check, which is bounded
	}
	var errs []error
	for range hosts {
		a := <-answers
		if a.err == nil {
			return a.host, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", a.host, a.err))
	}
	return "", errors.Join(errs...)
}

// check asks a server whether it is ready. An answer that refuses the question is one of a server that works.
func (s *Servers) check(ctx context.Context, host string) error {
	s.mu.Lock()
	first := slices.Clone(s.transports[:min(1, len(s.transports))])
	s.mu.Unlock()
	if len(first) == 0 {
		return errors.New("there is no client yet")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, errSlow)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := first[0].lane(host).http.RoundTrip(req)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // for the next use of the connection
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("/readyz answers %s", resp.Status)
	}
	return nil
}

var errSlow = fmt.Errorf("no answer from /readyz in %s", checkTimeout)

// doubt asks for a check of a server that failed, if it is the current one.
func (s *Servers) doubt(host string) {
	if now, several := s.now(); now != host || !several {
		return
	}
	s.suspect.Notify()
}

// parse returns an address and port of another machine as URLs write it.
func parse(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", err
	}
	return address(host, port)
}

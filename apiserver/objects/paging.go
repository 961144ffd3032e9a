// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Plan is an interpreted LIST. At most one of Exact and Latest is set; with neither, any state that is not older than
// Revision is valid.
type Plan struct {
	Prefix   string // first key of this page
	From     string // first key of this page
	Revision int64
	Exact    bool // read at Revision
	Latest   bool // consistent read
	// Continued: the request has a continue token.
	Continued bool
}

// continueToken has Kubernetes' format, so that tokens stay valid after a change of server.
type continueToken struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`
	Start    string `json:"start"`
}

// Plan applies the rules of metav1.ListOptions (API concepts, "Resource versions", the table for get and list).
func (c Config) Plan(query *ListQuery) (Plan, error) {
	if err := CheckQuery(query, false); err != nil {
		return Plan{}, err
	}
	prefix := c.KeyPrefix(query.Namespace)
	if query.Continue != "" {
		return planContinued(query, prefix)
	}
	rev, err := ParseRevision(query.ResourceVersion)
	if err != nil {
		return Plan{}, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if query.ResourceVersion == "0" { // any state, and without paging: clients that fill a cache do not expect pages
		query.Limit = 0
	}
	p := Plan{
		Prefix:   prefix,
		From:     prefix,
		Revision: rev,
		Latest:   query.ResourceVersion == "",
	}
	// A limit with a revision and without a match means exactly that revision, for compatibility.
	p.Exact = rev > 0 && (query.Match == string(metav1.ResourceVersionMatchExact) ||
		query.Match == "" && query.Limit > 0)
	return p, nil
}

func planContinued(q *ListQuery, prefix string) (Plan, error) {
	from, rev, err := decodeContinue(q.Continue, prefix)
	if err != nil {
		return Plan{}, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
	}
	if q.ResourceVersion != "" && q.ResourceVersion != "0" {
		return Plan{}, apierrors.NewBadRequest(messageVersionAndToken)
	}
	p := Plan{Prefix: prefix, From: from, Continued: true}
	if rev == inconsistentContinuation {
		p.Latest = true
	} else {
		p.Exact = true
		p.Revision = rev
	}
	return p, nil
}

// Page collects a List from entries in key order.
type Page struct {
	c          Config
	q          *ListQuery
	plan       Plan
	list       *List
	matchesAll bool
	remaining  int64
	more       bool
}

// NewPage starts a list at revision.
func (c Config) NewPage(q *ListQuery, p Plan, revision int64) *Page {
	return &Page{
		c:          c,
		q:          q,
		plan:       p,
		list:       &List{Revision: revision},
		matchesAll: q.Labels.Empty() && q.Fields.Empty(),
	}
}

// Add adds the next entry; false means that no more are needed.
func (p *Page) Add(e *Entry) bool {
	if !p.matchesAll && !p.c.Selects(p.q, e.Object) {
		return true
	}
	if p.q.Limit > 0 && int64(len(p.list.Items)) >= p.q.Limit {
		p.more = true
		p.remaining++
		return p.matchesAll // continue counting
	}
	p.list.Items = append(p.list.Items, e)
	return true
}

// List is the page with its continue token. The number of remaining objects is only known without selectors.
func (p *Page) List() *List {
	if !p.more {
		return p.list
	}
	last := p.list.Items[len(p.list.Items)-1]
	p.list.Continue = encodeContinue(last.Key+"\x00", p.plan.Prefix, p.list.Revision)
	if p.matchesAll {
		n := p.remaining
		p.list.Remaining = &n
	}
	return p.list
}

func encodeContinue(from, prefix string, rev int64) string {
	b, err := json.Marshal(continueToken{
		Version:  "meta.k8s.io/v1",
		Revision: rev,
		Start:    strings.TrimPrefix(from, prefix),
	})
	if err != nil {
		panic(err) // cannot happen: two strings and a number can be encoded
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeContinue returns the first key of the next page, which is always below prefix.
func decodeContinue(token, prefix string) (from string, rev int64, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", 0, fmt.Errorf("continue key is not valid: %w", err)
	}
	var t continueToken
	if err := json.Unmarshal(b, &t); err != nil {
		return "", 0, fmt.Errorf("continue key is not valid: %w", err)
	}
	switch {
	case t.Version != "meta.k8s.io/v1":
		return "", 0, fmt.Errorf("continue key is not valid: server does not recognize this encoded version %s",
			t.Version)
	case t.Revision == 0 || t.Revision < inconsistentContinuation:
		return "", 0,
			fmt.Errorf("continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case t.Start == "":
		return "", 0, fmt.Errorf("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)")
	}
	start := t.Start
	if !strings.HasPrefix(start, "/") {
		start = "/" + start
	}
	if path.Clean(start) != start { // "../" must not leave what the caller may read
		return "", 0, fmt.Errorf("continue key is not valid: %s", t.Start)
	}
	return prefix + start[1:], t.Revision, nil
}

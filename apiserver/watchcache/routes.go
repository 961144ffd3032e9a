// SPDX-License-Identifier: Apache-2.0

package watchcache

// routes finds the watchers that a change may concern, so that the cost depends on the matches and not on the number of
// watchers. A watcher has one routeKey: under its object's key, its indexed field's value, its namespace, or among
// those that see everything.
type routes struct {
	all       set
	byNS      map[string]set
	byKey     map[string]set
	byIdx     map[string]map[string]set // field, value
	bookmarks set                       // watchers with bookmarks
}

type set map[*watcher]struct{}

func newRoutes() routes {
	return routes{
		all:       set{},
		byNS:      map[string]set{},
		byKey:     map[string]set{},
		byIdx:     map[string]map[string]set{},
		bookmarks: set{},
	}
}

// routeKey is the position of a watcher in routes; at most one part is set.
type routeKey struct {
	namespace, key string
	index, value   string
}

// concerns reports whether dispatch would push the change to w.
func (w *watcher) concerns(c *change) bool {
	switch p := w.route; {
	case p.key != "":
		return p.key == c.key
	case p.index != "":
		ix := index{value: w.resource.records.Index[p.index]}
		return !c.prev.None() && ix.of(c.prev) == p.value || !c.cur.None() && ix.of(c.cur) == p.value
	case p.namespace != "":
		return p.namespace == w.resource.namespaceOf(c.key)
	}
	return true
}

func (r *routes) mapOf(p routeKey) (map[string]set, string) {
	switch {
	case p.key != "":
		return r.byKey, p.key
	case p.index != "":
		if r.byIdx[p.index] == nil {
			r.byIdx[p.index] = map[string]set{}
		}
		return r.byIdx[p.index], p.value
	case p.namespace != "":
		return r.byNS, p.namespace
	}
	return nil, ""
}

func (r *routes) add(w *watcher) {
	if w.bookmarks {
		r.bookmarks[w] = struct{}{}
	}
	m, k := r.mapOf(w.route)
	if m == nil {
		r.all[w] = struct{}{}
		return
	}
	if m[k] == nil {
		m[k] = set{}
	}
	m[k][w] = struct{}{}
}

func (r *routes) remove(w *watcher) {
	delete(r.bookmarks, w)
	m, k := r.mapOf(w.route)
	if m == nil {
		delete(r.all, w)
		return
	}
	delete(m[k], w)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}

func (r *routes) dispatch(c *change) {
	push(r.all, c)
	if len(r.byNS) > 0 {
		push(r.byNS[c.resource.namespaceOf(c.key)], c)
	}
	if len(r.byKey) > 0 {
		push(r.byKey[c.key], c)
	}
	for name, ix := range c.resource.trees.indexes {
		m := r.byIdx[name]
		if len(m) == 0 {
			continue
		}
		before := ix.of(c.prev)
		after := ix.of(c.cur)
		if !c.cur.None() {
			push(m[after], c)
		}
		if !c.prev.None() && (c.cur.None() || before != after) {
			push(m[before], c)
		}
	}
}

func push(ws set, c *change) {
	for w := range ws {
		w.push(c)
	}
}

func (r *routes) each(f func(*watcher)) {
	for w := range r.all {
		f(w)
	}
	for _, m := range []map[string]set{r.byNS, r.byKey} {
		for _, ws := range m {
			for w := range ws {
				f(w)
			}
		}
	}
	for _, m := range r.byIdx {
		for _, ws := range m {
			for w := range ws {
				f(w)
			}
		}
	}
}

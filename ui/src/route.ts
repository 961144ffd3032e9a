// SPDX-License-Identifier: Apache-2.0
// Addresses of the page's views, which stand behind the # of the page's address. Pure.

export interface Ref {
  group: string;
  version: string;
  resource: string;
}

export type Route =
  | { view: 'overview' }
  | { view: 'whatif'; node: string }
  | { view: 'enter'; code: string }
  | ({ view: 'list'; namespace: string } & Ref)
  | ({ view: 'object'; namespace: string; name: string; tab: string } & Ref)
  | { view: 'unknown' };

const none = '-';

/** parse reads what follows the #. */
export function parse(hash: string): Route {
  let parts: string[];
  try {
    parts = hash.replace(/^#?\/?/, '').split('/').map(decodeURIComponent);
  } catch {
    return { view: 'unknown' };
  }
  const [view, a, b, c, d, e, f] = parts;
  if (!view) return { view: 'overview' };
  if (view === 'whatif') return { view, node: a ?? '' };
  if (view === 'enter' && a) return { view: 'enter', code: a };
  if (!a || !b || !c) return { view: 'unknown' };
  const ref = { group: a === none ? '' : a, version: b, resource: c };
  const namespace = !d || d === none ? '' : d;
  if (view === 'list') return { view, namespace, ...ref };
  if (view === 'object' && e) return { view, namespace, name: e, tab: f ?? '', ...ref };
  return { view: 'unknown' };
}

const join = (...parts: string[]) => '#/' + parts.map(encodeURIComponent).join('/');

export const overview = () => '#/';

/** whatIfAt is where one asks what if, about a node. */
export const whatIfAt = (node = '') => join('whatif', ...(node ? [node] : []));

export const listAt = (r: Ref, namespace = '') =>
  join('list', r.group || none, r.version, r.resource, ...(namespace ? [namespace] : []));

export const objectAt = (r: Ref, namespace: string, name: string, tab = '') =>
  join('object', r.group || none, r.version, r.resource, namespace || none, name, ...(tab ? [tab] : []));

/** pathOf is the path of a resource in the API, of one object with name. */
export function pathOf(r: Ref, namespace: string, name = ''): string {
  const e = encodeURIComponent;
  const base = r.group ? `/apis/${e(r.group)}/${e(r.version)}` : `/api/${e(r.version)}`;
  return base + (namespace ? `/namespaces/${e(namespace)}` : '') + `/${e(r.resource)}` + (name ? `/${e(name)}` : '');
}

export const pods: Ref = { group: '', version: 'v1', resource: 'pods' };
export const nodes: Ref = { group: '', version: 'v1', resource: 'nodes' };
export const namespaces: Ref = { group: '', version: 'v1', resource: 'namespaces' };

// SPDX-License-Identifier: Apache-2.0
// A table that stays as the server has it while it is on screen: pages of a LIST, then one watch.
import { Failure, json, streams } from './api';
import type { Column, Meta, Row, Table } from './types';

const asTable = 'application/json;as=Table;v=v1;g=meta.k8s.io,application/json';

export const pageSize = 500;

export class Feed {
  columns: Column[] = [];
  readonly rows = new Map<string, Row>();
  state: 'loading' | 'live' | 'lost' = 'loading';
  failure: Failure | undefined;
  /** remaining rows are not loaded. */
  remaining = 0;

  /** version is that of the last change. */
  version = '';
  private more = '';
  private stop: (() => void) | undefined;
  private ended = false;
  private frame = 0;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private readonly abort = new AbortController();

  /** most is the number of rows after which no further page is loaded by itself. */
  constructor(
    private readonly path: string,
    private readonly query: string,
    private readonly changed: () => void,
    private readonly most: number,
  ) {}

  start() {
    void this.list();
  }

  end() {
    this.ended = true;
    this.abort.abort();
    this.stop?.();
    clearTimeout(this.retry);
    cancelAnimationFrame(this.frame);
  }

  /** loadMore loads the next page. */
  async loadMore() {
    if (!this.more || this.ended) return;
    const token = this.more;
    this.more = '';
    try {
      this.take(await this.page(token));
    } catch {
      this.remaining = 0; // the token has expired: rows arrive when they change
    }
    this.paint();
  }

  private page = (token: string) =>
    json<Table>(`${this.path}?limit=${pageSize}${this.query}${token ? `&continue=${encodeURIComponent(token)}` : ''}`, {
      accept: asTable,
      signal: this.abort.signal,
    });

  private async list() {
    try {
      const first = await this.page('');
      this.rows.clear();
      this.version = first.metadata?.resourceVersion ?? '';
      this.take(first);
      this.failure = undefined;
      this.paint();
      while (this.more && this.rows.size < this.most && !this.ended) {
        const token = this.more;
        this.more = '';
        this.take(await this.page(token));
        this.paint();
      }
      this.watch();
    } catch (e) {
      if (this.ended) return;
      this.failure = e instanceof Failure ? e : new Failure(0, String(e));
      this.state = 'lost';
      if (this.failure.code === 0 || this.failure.code >= 500 || this.failure.code === 429) this.again(() => void this.list());
      this.paint();
    }
  }

  private again(f: () => void) {
    if (!this.ended) this.retry = setTimeout(f, 1_000 + Math.random() * 1_000);
  }

  private watch() {
    if (this.ended) return;
    const path = `${this.path}?watch=true&allowWatchBookmarks=true&resourceVersion=${this.version}${this.query}`;
    let stale = false;
    this.stop = streams.open(path, asTable, {
      open: () => {
        this.state = 'live';
        this.paint();
      },
      line: (line) => {
        const event = JSON.parse(line) as { type: string; object: Table };
        if (event.type === 'ERROR') stale = true;
        else this.apply(event.type, event.object);
      },
      end: (_reason, code, lost) => {
        if (this.ended) return;
        if (lost || code !== 200) this.state = 'lost';
        this.paint();
        this.again(() => (stale || code === 410 ? void this.list() : this.watch()));
      },
    });
  }

  private apply(type: string, table: Table) {
    for (const r of table.rows ?? []) {
      const meta = r.object?.metadata;
      if (!meta) continue;
      this.version = meta.resourceVersion ?? this.version;
      if (type === 'BOOKMARK') continue;
      if (type === 'DELETED') this.rows.delete(meta.uid);
      else this.rows.set(meta.uid, { cells: r.cells, meta: slim(meta) });
    }
    if (table.metadata?.resourceVersion) this.version = table.metadata.resourceVersion;
    this.paint();
  }

  private take(table: Table) {
    if (table.columnDefinitions?.length) this.columns = table.columnDefinitions;
    for (const r of table.rows ?? []) {
      const meta = r.object?.metadata;
      if (meta) this.rows.set(meta.uid, { cells: r.cells, meta: slim(meta) });
    }
    this.more = table.metadata?.continue ?? '';
    this.remaining = this.more ? (table.metadata?.remainingItemCount ?? 0) : 0;
  }

  /** paint has the page drawn once a frame, however many changes there are. */
  private paint() {
    if (this.frame || this.ended) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.changed();
    });
  }
}

/** slim keeps of an object's metadata what the page shows. */
function slim(m: Meta): Meta {
  const out: Meta = { name: m.name, uid: m.uid };
  if (m.namespace) out.namespace = m.namespace;
  if (m.creationTimestamp) out.creationTimestamp = m.creationTimestamp;
  if (m.deletionTimestamp) out.deletionTimestamp = m.deletionTimestamp;
  if (m.labels) out.labels = m.labels;
  if (m.annotations && 'kwok.x-k8s.io/node' in m.annotations) out.annotations = { 'kwok.x-k8s.io/node': '' };
  if (m.ownerReferences) out.ownerReferences = m.ownerReferences;
  return out;
}

// SPDX-License-Identifier: Apache-2.0
// A table of any kind, with the columns of the server.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useAround, useFeed, useKey, useNow } from './hooks';
import { Refused, Rows } from './parts';
import { age, cell, health, matcher, sortRows } from './pure';
import { objectAt, pathOf } from './route';
import type { Ref } from './route';
import type { Column, Row } from './types';
import { words } from './words';

const rowHeight = 34;
const wide = 1100;
const narrow = 700;

/** important are the columns for which a phone has room. */
function important(columns: Column[]): Column[] {
  const known = columns.filter((c) => ['Name', 'Ready', 'Status', 'Age'].includes(c.name));
  return known.length > 2 ? known : columns.slice(0, 3);
}

export function List({ of, namespace }: { of: Ref; namespace: string }) {
  const { kinds } = useAround();
  const kind = kinds.find((k) => k.resource === of.resource && k.group === of.group);
  const feed = useFeed(pathOf(of, namespace));
  const now = useNow(5_000);
  const [filter, setFilter] = useState('');
  const [sort, setSort] = useState({ by: 'Name', down: false });
  const [chosen, choose] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  const width = useWidth();
  const isPods = of.resource === 'pods' && of.group === '';
  const usual = (feed?.columns ?? []).filter(
    (c) => (c.priority === 0 || (width > wide && ['Node', 'IP'].includes(c.name))) && c.name !== 'Namespace',
  );
  const columns = width > narrow ? usual : important(usual);
  const namespaced = kind ? kind.namespaced : [...(feed?.rows.values() ?? [])].some((r) => r.meta.namespace);
  const showNamespace = namespaced && !namespace && width > narrow;
  const size = feed?.rows.size ?? 0;
  const shown = useMemo(() => {
    const matches = matcher(filter);
    const found = [...(feed?.rows.values() ?? [])].filter((r) => !filter || matches(lineOf(r)));
    return sortRows(found, feed?.columns ?? [], sort.by, sort.down);
  }, [feed, size, filter, sort, now, feed?.rows, feed?.state]);
  useKey((e) => {
    if (e.key === '/') {
      e.preventDefault();
      input.current?.focus();
    } else if (e.key === 'j') choose(Math.min(shown.length - 1, chosen + 1));
    else if (e.key === 'k') choose(Math.max(0, chosen - 1));
    else if (e.key === 'Enter' && shown[chosen]) location.hash = hrefOf(of, shown[chosen]!);
  });
  useEffect(() => choose(-1), [of.resource, of.group, namespace]);
  const template = [showNamespace ? 'minmax(6rem, 1fr)' : '', ...columns.map(widthOf)].filter(Boolean).join(' ');
  const by = (name: string) => setSort({ by: name, down: sort.by === name && !sort.down });
  return (
    <section class="list">
      <header>
        <h1>{kind ? words.kinds(kind.kind) : of.resource}</h1>
        <p class="quiet" aria-live="polite">
          {feed && words.list.count(shown.length, size, feed.remaining)}
          {feed && <span class={`state ${feed.state}`}>{feed.state === 'live' ? words.list.live : feed.state === 'lost' ? words.list.paused : ''}</span>}
        </p>
        <input
          ref={input}
          type="search"
          placeholder={`${words.list.filter} (${words.list.filterHint})`}
          aria-label={words.list.filter}
          value={filter}
          onInput={(e) => setFilter(e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key === 'Escape' || e.key === 'Enter') e.currentTarget.blur();
          }}
        />
      </header>
      {feed?.failure && <Refused failure={feed.failure} what={of} namespace={namespace} />}
      {feed && columns.length > 0 && (
        <div class="table" role="table" aria-rowcount={shown.length}>
          <div class="head" role="row" style={{ gridTemplateColumns: template }}>
            {showNamespace && <Head name={words.namespace} by={() => by(words.namespace)} sort={sort} />}
            {columns.map((c) => (
              <Head key={c.name} name={c.name} by={() => by(c.name)} sort={sort} />
            ))}
          </div>
          <Rows
            count={shown.length}
            height={rowHeight}
            label={kind?.kind ?? of.resource}
            show={chosen}
            atEnd={() => void feed.loadMore()}
            row={(i) => {
              const r = shown[i]!;
              return (
                <div
                  key={r.meta.uid}
                  role="row"
                  class={`row ${i === chosen ? 'chosen' : ''} ${isPods ? health(feed.columns, r, now) : ''}`}
                  style={{ gridTemplateColumns: template }}
                >
                  {showNamespace && (
                    <span role="cell" class="quiet">
                      {r.meta.namespace}
                    </span>
                  )}
                  {columns.map((c) => (
                    <span role="cell" key={c.name} class={classOf(c)}>
                      {c.name === 'Name' ? <a href={hrefOf(of, r)}>{textOf(feed.columns, r, c, now)}</a> : textOf(feed.columns, r, c, now)}
                    </span>
                  ))}
                </div>
              );
            }}
          />
          {feed.remaining > 0 && (
            <button class="more" onClick={() => void feed.loadMore()}>
              {words.list.loadMore}
            </button>
          )}
          {shown.length === 0 && feed.state !== 'loading' && <p class="quiet none">{filter ? words.list.noneFound : words.list.none}</p>}
        </div>
      )}
      {!feed?.failure && columns.length === 0 && <p class="quiet none">{feed?.state === 'live' ? words.list.none : words.loading}</p>}
    </section>
  );
}

function Head({ name, by, sort }: { name: string; by: () => void; sort: { by: string; down: boolean } }) {
  const own = sort.by === name;
  return (
    <span role="columnheader" aria-sort={own ? (sort.down ? 'descending' : 'ascending') : 'none'}>
      <button onClick={by}>
        {name}
        {own && <span aria-hidden="true">{sort.down ? ' ↓' : ' ↑'}</span>}
      </button>
    </span>
  );
}

const hrefOf = (of: Ref, r: Row) => objectAt(of, r.meta.namespace ?? '', r.meta.name);

const lineOf = (r: Row) => `${r.meta.namespace ?? ''} ${r.cells.join(' ')}`;

function textOf(columns: Column[], r: Row, c: Column, now: number): string {
  if (c.name === 'Age' && r.meta.creationTimestamp) return age(now - Date.parse(r.meta.creationTimestamp));
  return cell(columns, r, c.name).replace(/^<none>$/, '–');
}

function widthOf(c: Column): string {
  if (c.name === 'Name') return 'minmax(9rem, 2.4fr)';
  if (c.name === 'Age' || c.name === 'Ready' || c.type === 'integer') return 'minmax(3.6rem, 0.5fr)';
  return c.name === 'Status' ? 'minmax(6rem, 1.3fr)' : 'minmax(5rem, 1fr)';
}

const classOf = (c: Column) => (c.name === 'Name' ? 'name' : c.name === 'Status' ? 'status' : c.type === 'integer' ? 'number' : '');

function useWidth(): number {
  const [width, set] = useState(innerWidth);
  useEffect(() => {
    const sized = () => set(innerWidth);
    addEventListener('resize', sized);
    return () => removeEventListener('resize', sized);
  }, []);
  return width;
}

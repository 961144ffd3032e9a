// SPDX-License-Identifier: Apache-2.0
// The first view: what is not well and why, in words; then the nodes as boxes.
import type { Feed } from './feed';
import { useAround, useFeed, useJson, useNow } from './hooks';
import { Refused } from './parts';
import { age, cell, health, isFake, problems, reasons } from './pure';
import type { Problem } from './pure';
import { listAt, nodes as nodesRef, objectAt, pathOf, pods as podsRef } from './route';
import type { Answer, Row } from './types';
import { words } from './words';

const mostPods = 5_000;
const mostLines = 12;
const mostWhys = 4; // the server answers so many questions of one person at a time
const mostBoxes = 200; // with pods; more nodes are a map
const mostDots = 120; // of one node

export function Overview({ namespace }: { namespace: string }) {
  const now = useNow(5_000);
  const pods = useFeed(pathOf(podsRef, namespace), '', mostPods);
  const nodes = useFeed(pathOf(nodesRef, ''), '', mostPods);
  if (!pods) return null;
  const list = problems(pods.columns, pods.rows.values(), now);
  const silent = nodes ? [...nodes.rows.values()].filter((n) => !cell(nodes.columns, n, 'Status').startsWith('Ready')) : [];
  const count = list.length + silent.length;
  let starting = 0;
  for (const row of pods.rows.values()) if (health(pods.columns, row, now) === 'starting') starting++;
  const loading = pods.state === 'loading' && !pods.failure && pods.rows.size === 0;
  const known = pods.columns.length > 0 || pods.state === 'live';
  return (
    <section class="overview">
      <header>
        <h1 class={count ? 'ill' : ''}>
          {loading || (!known && !pods.failure)
            ? words.loading
            : pods.failure && !known
              ? words.nav.overview
              : count
                ? words.overview.notWell(count)
                : pods.rows.size
                  ? words.overview.well
                  : words.overview.empty}
        </h1>
        {known && (
          <p class="quiet">
            {words.overview.counting(pods.rows.size, nodes?.rows.size ?? 0)}
            {starting > 0 && ` · ${words.overview.starting(starting)}`}
            {pods.remaining > 0 && ` · ${words.overview.first(pods.rows.size)}`}
          </p>
        )}
      </header>
      {pods.failure && <Refused failure={pods.failure} what={podsRef} namespace={namespace} />}
      {count > 0 && (
        <ol class="problems">
          {silent.map((n) => (
            <Silent key={n.meta.uid} row={n} />
          ))}
          {list.slice(0, mostLines).map((p, i) => (
            <Line key={`${p.namespace}/${p.workload}/${p.status}`} problem={p} explain={i < mostWhys} />
          ))}
          {list.length > mostLines && (
            <li class="quiet">
              <a href={listAt(podsRef, namespace)}>{words.overview.more(list.length - mostLines)}</a>
            </li>
          )}
        </ol>
      )}
      {nodes?.failure ? <Refused failure={nodes.failure} what={nodesRef} /> : nodes && <Nodes nodes={nodes} pods={pods} now={now} />}
    </section>
  );
}

/** Line is a group of pods that are not well, with the reason that the server gives for one of them. */
function Line({ problem: p, explain }: { problem: Problem; explain: boolean }) {
  const name = p.pods[0]!;
  const asked = useJson<Answer>(
    explain ? `/keelson/v1/ask/why/pod/${encodeURIComponent(name)}?namespace=${encodeURIComponent(p.namespace)}` : '',
    p.status,
  );
  const why = asked.value ? reasons(asked.value).slice(0, 2) : [];
  return (
    <li>
      <a href={objectAt(podsRef, p.namespace, name)}>
        <strong>{words.subject(p.pods.length, p.workload)}</strong> {words.problem(p.status, p.unready, p.pods.length > 1)}
        <span class="where">{p.namespace}</span>
      </a>
      {why.map((line) => (
        <p class="because" key={line}>
          {line.replaceAll('`', '')}
        </p>
      ))}
    </li>
  );
}

function Silent({ row }: { row: Row }) {
  const asked = useJson<Answer>(`/keelson/v1/ask/why/node/${encodeURIComponent(row.meta.name)}`);
  return (
    <li>
      <a href={objectAt(nodesRef, '', row.meta.name)}>
        <strong>{words.overview.nodeSilent(row.meta.name)}</strong>
      </a>
      {asked.value &&
        reasons(asked.value).map((line) => (
          <p class="because" key={line}>
            {line.replaceAll('`', '')}
          </p>
        ))}
    </li>
  );
}

function Nodes({ nodes, pods, now }: { nodes: Feed; pods: Feed; now: number }) {
  const byNode = new Map<string, Row[]>();
  for (const row of pods.rows.values()) {
    const node = cell(pods.columns, row, 'Node').replace(/^<none>$/, '');
    const list = byNode.get(node);
    if (list) list.push(row);
    else byNode.set(node, [row]);
  }
  const sorted = [...nodes.rows.values()].sort(
    (a, b) => Number(isFake(a.meta)) - Number(isFake(b.meta)) || a.meta.name.localeCompare(b.meta.name, 'en', { numeric: true }),
  );
  const waiting = byNode.get('') ?? [];
  const small = sorted.length > mostBoxes;
  return (
    <>
      <h2>{words.overview.nodes}</h2>
      <div class={small ? 'nodes map' : 'nodes'}>
        {waiting.length > 0 && (
          <div class="node nowhere">
            <h3>{words.overview.waiting}</h3>
            <Dots rows={waiting} pods={pods} now={now} />
          </div>
        )}
        {sorted.map((n) => {
          const own = byNode.get(n.meta.name) ?? [];
          const status = cell(nodes.columns, n, 'Status');
          const ready = status.startsWith('Ready');
          const fake = isFake(n.meta);
          const ill = own.filter((r) => health(pods.columns, r, now) === 'ill').length;
          if (small) {
            return (
              <a
                key={n.meta.uid}
                class={`cellbox ${ready ? (ill ? 'ill' : 'well') : 'silent'}`}
                href={objectAt(nodesRef, '', n.meta.name)}
                title={`${n.meta.name}: ${own.length}`}
              />
            );
          }
          return (
            <div key={n.meta.uid} class={`node ${fake ? 'fake' : ''} ${ready ? '' : 'silent'}`}>
              <h3>
                <a href={objectAt(nodesRef, '', n.meta.name)}>{n.meta.name}</a>
                <span class="kind" title={fake ? words.overview.fake : words.overview.real}>
                  {fake ? 'fake' : words.overview.real}
                </span>
              </h3>
              <p class="quiet">
                {ready ? age(now - Date.parse(n.meta.creationTimestamp ?? '')) : words.overview.notReady}
                {status.includes('SchedulingDisabled') && ` · ${words.overview.cordoned}`}
                {` · ${own.length}`}
              </p>
              <Dots rows={own} pods={pods} now={now} />
            </div>
          );
        })}
      </div>
    </>
  );
}

function Dots({ rows, pods, now }: { rows: Row[]; pods: Feed; now: number }) {
  const named = rows.map((row) => ({ row, health: health(pods.columns, row, now) }));
  const order = ['ill', 'leaving', 'starting', 'well', 'ended'];
  named.sort((a, b) => order.indexOf(a.health) - order.indexOf(b.health) || a.row.meta.name.localeCompare(b.row.meta.name));
  return (
    <div class="dots">
      {named.slice(0, mostDots).map((p) => {
        const label = `${p.row.meta.namespace ?? ''}/${p.row.meta.name} ${words.overview.health[p.health]}`;
        return (
          <a
            key={p.row.meta.uid}
            class={`dot ${p.health}`}
            href={objectAt(podsRef, p.row.meta.namespace ?? '', p.row.meta.name)}
            title={label}
            aria-label={label}
          />
        );
      })}
      {named.length > mostDots && <span class="quiet">{words.overview.more(named.length - mostDots)}</span>}
    </div>
  );
}

export const useNamespaceOrOwn = (namespace: string) => {
  const { session } = useAround();
  return namespace || session.namespace;
};

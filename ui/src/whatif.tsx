// SPDX-License-Identifier: Apache-2.0
// What if a node were drained, or there were more nodes? The server simulates it, and writes nothing.
import { useState } from 'preact/hooks';
import { json } from './api';
import { useJson } from './hooks';
import { nodes as nodesRef, objectAt, pathOf, pods } from './route';
import { fates, question } from './suppose';
import type { Supposed, Supposition } from './suppose';
import type { List, Meta } from './types';
import { words } from './words';

const w = words.whatif;

export function WhatIf({ node }: { node: string }) {
  const listed = useJson<List<{ metadata: Meta }>>(`${pathOf(nodesRef, '')}?limit=500`, 0, {
    accept: 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io',
  });
  const [s, set] = useState<Supposition>({ node, how: 'drain', added: 0, resources: 'cpu=4,memory=8Gi' });
  const [answer, setAnswer] = useState<Supposed>();
  const [failure, fail] = useState('');
  const [running, run] = useState(false);
  const asked = question(s);
  const names = new Set([...(node ? [node] : []), ...(listed.value?.items ?? []).map((n) => n.metadata.name)]);
  const ask = () => {
    run(true);
    fail('');
    json<Supposed>('/keelson/v1/ask/whatif', { method: 'POST', type: 'application/json', body: JSON.stringify(asked) })
      .then(setAnswer, (e: unknown) => {
        setAnswer(undefined);
        fail(e instanceof Error ? e.message : String(e));
      })
      .finally(() => run(false));
  };
  const lines = answer ? fates(answer) : [];
  return (
    <section class="whatif">
      <header>
        <h1>{w.title}</h1>
        <p class="quiet">{w.how}</p>
      </header>
      <div class="controls">
        <select aria-label={w.leaves} value={s.how} onChange={(e) => set({ ...s, how: e.currentTarget.value as Supposition['how'] })}>
          <option value="drain">{w.drain}</option>
          <option value="remove">{w.remove}</option>
        </select>
        <select aria-label={w.node} value={s.node} onChange={(e) => set({ ...s, node: e.currentTarget.value })}>
          <option value="">{w.noNode}</option>
          {[...names].map((n) => (
            <option key={n}>{n}</option>
          ))}
        </select>
        <label>
          {w.add} <input class="few" type="number" min={0} max={1000} value={s.added} onInput={(e) => set({ ...s, added: Number(e.currentTarget.value) || 0 })} />
        </label>
        <label>
          {w.each} <input value={s.resources} onInput={(e) => set({ ...s, resources: e.currentTarget.value })} />
        </label>
        <button class="main" disabled={!asked || running} onClick={ask}>
          {w.ask}
        </button>
      </div>
      {running && <p class="quiet">{words.loading}</p>}
      {failure && (
        <p class="note bad" role="alert">
          {failure}
        </p>
      )}
      {answer && !running && (
        <>
          <p class="lead" role="status">
            {w.sum(lines.filter((l) => l.fate === 'placed').length, lines.filter((l) => l.fate === 'pending').length, lines.filter((l) => l.fate === 'lost').length, answer.nodes)}
          </p>
          {answer.notes?.map((n) => (
            <p class="note" key={n}>
              {n}
            </p>
          ))}
          <ol class="events">
            {lines.map((l) => (
              <li key={`${l.namespace}/${l.name}`} class={l.fate === 'placed' ? '' : 'warning'}>
                <p>
                  <a href={objectAt(pods, l.namespace, l.name)}>
                    <strong>{`${l.namespace}/${l.name}`}</strong>
                  </a>{' '}
                  {w.fate[l.fate](l.node)} <span class="quiet">{l.why}</span>
                </p>
                {l.reasons.map((r) => (
                  <p class="quiet" key={r}>
                    {r}
                  </p>
                ))}
              </li>
            ))}
          </ol>
        </>
      )}
    </section>
  );
}

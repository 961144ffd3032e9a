// SPDX-License-Identifier: Apache-2.0
// A workload's rollout as it goes on: how many pods are new, ready and old, and what it waits for.
import { useJson } from './hooks';
import { rollout, sets } from './rollout';
import type { Workload } from './rollout';
import { objectAt, pathOf } from './route';
import type { Ref } from './route';
import type { List, ReplicaSet } from './types';
import { words } from './words';

const w = words.rollout;
const replicaSets: Ref = { group: 'apps', version: 'v1', resource: 'replicasets' };

export const rollsOut = (of: Ref) => of.group === 'apps' && ['deployments', 'statefulsets', 'daemonsets'].includes(of.resource);

export function RolloutView({ of, object, namespace }: { of: Ref; object: Workload; namespace: string }) {
  const r = rollout(object);
  const deployment = of.resource === 'deployments';
  const asked = useJson<List<ReplicaSet>>(deployment ? `${pathOf(replicaSets, namespace)}?limit=500` : '', JSON.stringify(object.status));
  const own = sets(object.metadata, asked.value?.items ?? []);
  return (
    <div class="rollout">
      <h2>{w.title}</h2>
      <p class={r.wait ? '' : 'good'}>{w.wait[r.wait || 'done']}</p>
      {r.wait === 'stuck' && <p class="note bad">{r.message}</p>}
      <dl>
        {(['wanted', 'updated', 'ready', 'available', 'old'] as const).map((k) => (
          <div key={k}>
            <dt>{w[k]}</dt>
            <dd>{r[k]}</dd>
          </div>
        ))}
      </dl>
      {own.length > 0 && (
        <ul class="plainlist">
          {own.map((s) => (
            <li key={s.name}>
              <a href={objectAt(replicaSets, namespace, s.name)}>{s.name}</a>{' '}
              <progress max={Math.max(s.wanted, s.ready, 1)} value={s.ready} aria-label={s.name} />{' '}
              <span class="quiet">{w.set(s.revision, s.ready, s.wanted, s.current)}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

// SPDX-License-Identifier: Apache-2.0
// Drains a node as kubectl does: the node takes no new pods, then each pod is evicted. What is in the way is shown first.
import { useEffect, useRef, useState } from 'preact/hooks';
import { drainPlan } from './acts';
import { Failure, json } from './api';
import { Dialog } from './dialog';
import { useJson } from './hooks';
import { Refused } from './parts';
import { some } from './pure';
import { nodes, pathOf, pods as podsRef } from './route';
import type { Ref } from './route';
import type { List, PodDisruptionBudget, WholePod } from './types';
import { words } from './words';

const w = words.drain;
const budgetsRef: Ref = { group: 'policy', version: 'v1', resource: 'poddisruptionbudgets' };
const again = 5_000; // as kubectl

const pause = (ms: number, signal: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      done();
    });
  });

const titled = (p: WholePod) => `${p.metadata.namespace ?? ''}/${p.metadata.name}`;

export function Drain({ node, close }: { node: string; close: () => void }) {
  const selector = encodeURIComponent(`spec.nodeName=${node}`);
  const asked = useJson<List<WholePod>>(`${pathOf(podsRef, '')}?fieldSelector=${selector}`);
  const budgets = useJson<List<PodDisruptionBudget>>(pathOf(budgetsRef, ''));
  const [lose, setLose] = useState({ alone: false, scratch: false });
  const [said, say] = useState<Record<string, string>>({});
  const abort = useRef(new AbortController());
  useEffect(() => () => abort.current.abort(), []);
  const plan = asked.value && drainPlan(asked.value.items, budgets.value?.items ?? []);
  const ready = !!plan && !!(budgets.value ?? budgets.failure) && (lose.alone || plan.alone.length === 0) && (lose.scratch || plan.scratch.length === 0);
  const { signal } = abort.current;

  /** evict asks until the pod is on its way, and waits until it has gone. */
  async function evict(p: WholePod) {
    const path = pathOf(podsRef, p.metadata.namespace ?? '', p.metadata.name);
    const note = (text: string) => say((all) => ({ ...all, [titled(p)]: text }));
    const eviction = {
      apiVersion: 'policy/v1',
      kind: 'Eviction',
      metadata: { name: p.metadata.name, namespace: p.metadata.namespace },
      deleteOptions: { preconditions: { uid: p.metadata.uid } },
    };
    const post = { method: 'POST', type: 'application/json', body: JSON.stringify(eviction), signal };
    for (let going = false; !signal.aborted; ) {
      try {
        if (!going) {
          await json(`${path}/eviction`, post);
          going = true;
          note(w.leaving);
        }
        const now = await json<WholePod>(path, { signal });
        if (now.metadata.uid !== p.metadata.uid) break;
      } catch (e) {
        if (signal.aborted) return;
        if (!(e instanceof Failure)) throw e;
        if (e.code === 404 || e.code === 409) break; // it has gone, or another one has its name
        if (e.code !== 429) throw e;
        note(e.message);
      }
      await pause(going ? 1_000 : again, signal);
    }
    note(w.left);
  }

  const act = async () => {
    await json(pathOf(nodes, '', node), {
      method: 'PATCH',
      type: 'application/merge-patch+json',
      body: JSON.stringify({ spec: { unschedulable: true } }),
    });
    const tried = await Promise.allSettled((plan?.leave ?? []).map(evict));
    const failed = tried.find((r) => r.status === 'rejected');
    if (failed) throw failed.reason;
    say((all) => ({ ...all, '': w.drained }));
    return false;
  };
  const started = Object.keys(said).length > 0;
  return (
    <Dialog title={w.title(node)} confirm={w.start} danger ready={ready && !said['']} act={act} close={close}>
      {asked.failure && <Refused failure={asked.failure} what={podsRef} />}
      {budgets.failure && <p class="note">{w.noBudgets}</p>}
      {!plan && !asked.failure && <p class="quiet">{words.loading}</p>}
      {plan && !started && (
        <>
          <p>{w.plan(plan.leave.length, plan.stay.length)}</p>
          {plan.budgets.map((b) => (
            <p class="note bad" key={`${b.namespace}/${b.name}`}>
              {w.budget(`${b.namespace}/${b.name}`, b.allowed, some(b.pods))}
            </p>
          ))}
          {plan.alone.length > 0 && (
            <label class="note bad check">
              <input type="checkbox" checked={lose.alone} onChange={(e) => setLose({ ...lose, alone: e.currentTarget.checked })} />
              {w.alone(some(plan.alone.map(titled)))}
            </label>
          )}
          {plan.scratch.length > 0 && (
            <label class="note bad check">
              <input type="checkbox" checked={lose.scratch} onChange={(e) => setLose({ ...lose, scratch: e.currentTarget.checked })} />
              {w.scratch(some(plan.scratch.map(titled)))}
            </label>
          )}
          <p class="quiet">{w.how}</p>
        </>
      )}
      {started && (
        <ul class="plainlist" aria-live="polite">
          {said[''] && <li class="good">{said['']}</li>}
          {(plan?.leave ?? []).map((p) => (
            <li key={p.metadata.uid}>
              <strong>{titled(p)}</strong> <span class="quiet">{said[titled(p)] ?? ''}</span>
            </li>
          ))}
        </ul>
      )}
    </Dialog>
  );
}

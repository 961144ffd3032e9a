// SPDX-License-Identifier: Apache-2.0
// What can be done with an object: a button for each action that the viewer may do, and the question before it.
import { useEffect, useState } from 'preact/hooks';
import { belongings, byKind, lines, restart, revisions, rollback } from './acts';
import { json, text } from './api';
import type { Call } from './api';
import { Dialog } from './dialog';
import { Drain } from './drain';
import { useAround, useJson } from './hooks';
import { Refused } from './parts';
import { diff, some } from './pure';
import { useMay } from './rights';
import { pathOf, pods, whatIfAt } from './route';
import type { Ref } from './route';
import type { Deployment, Kind, List, Meta, Owned, ReplicaSet } from './types';
import { words } from './words';
import { Diff, changed } from './yaml';

const w = words.act;

interface Target {
  kind?: string;
  metadata: Meta;
  spec?: { replicas?: number; unschedulable?: boolean };
}

type Act = 'scale' | 'restart' | 'rollback' | 'cordon' | 'drain' | 'remove';

interface Asked {
  of: Ref;
  namespace: string;
  name: string;
  object: Target;
  path: string;
  close: () => void;
}

const replicaSets: Ref = { group: 'apps', version: 'v1', resource: 'replicasets' };

const patch = (type: string, body: unknown): Call => ({ method: 'PATCH', type: `application/${type}+json`, body: JSON.stringify(body) });

export function Actions({ of, namespace, name, object }: { of: Ref; namespace: string; name: string; object: Target }) {
  const [asked, ask] = useState<Act>();
  const apps = of.group === 'apps';
  const scales = apps && ['deployments', 'statefulsets', 'replicasets'].includes(of.resource);
  const restarts = apps && ['deployments', 'statefulsets', 'daemonsets'].includes(of.resource);
  const node = of.group === '' && of.resource === 'nodes';
  const own = { of, namespace, name };
  const may = {
    scale: useMay(scales ? [{ verb: 'patch', subresource: 'scale', ...own }] : []),
    patch: useMay(restarts || node ? [{ verb: 'patch', ...own }] : []),
    evict: useMay(node ? [{ verb: 'create', of: pods, subresource: 'eviction', namespace: '' }] : []),
    remove: useMay([{ verb: 'delete', ...own }]),
  };
  const offered: Act[] = [
    ...(may.scale ? (['scale'] as const) : []),
    ...(may.patch && restarts ? (['restart'] as const) : []),
    ...(may.patch && of.resource === 'deployments' ? (['rollback'] as const) : []),
    ...(may.patch && node ? (['cordon'] as const) : []),
    ...(may.patch && may.evict && node ? (['drain'] as const) : []),
    ...(may.remove ? (['remove'] as const) : []),
  ];
  if (offered.length === 0 && !node) return null;
  const question: Asked = { ...own, object, path: pathOf(of, namespace, name), close: () => ask(undefined) };
  return (
    <div class="actions">
      {offered.map((a) => (
        <button key={a} onClick={() => ask(a)}>
          {a === 'cordon' && object.spec?.unschedulable ? w.uncordon : w[a]}
        </button>
      ))}
      {node && <a href={whatIfAt(name)}>{words.whatif.title}</a>}
      {asked === 'scale' && <Scale {...question} />}
      {asked === 'restart' && <Restart {...question} />}
      {asked === 'rollback' && <Rollback {...question} />}
      {asked === 'cordon' && <Cordon {...question} />}
      {asked === 'drain' && <Drain node={name} close={question.close} />}
      {asked === 'remove' && <Remove {...question} />}
    </div>
  );
}

function Scale({ object, namespace, name, path, close }: Asked) {
  const now = object.spec?.replicas ?? 1;
  const [typed, type] = useState(String(now));
  const scalers = useJson<List<{ metadata: Meta; spec: { scaleTargetRef: { kind: string; name: string } } }>>(
    `${pathOf({ group: 'autoscaling', version: 'v2', resource: 'horizontalpodautoscalers' }, namespace)}?limit=500`,
  );
  const scaler = scalers.value?.items.find((s) => s.spec.scaleTargetRef.kind === object.kind && s.spec.scaleTargetRef.name === name);
  const wanted = /^\d{1,6}$/.test(typed) ? Number(typed) : undefined;
  return (
    <Dialog
      title={w.scaleOf(name)}
      confirm={w.scale}
      ready={wanted !== undefined && wanted !== now}
      danger={wanted === 0}
      close={close}
      act={() => json(`${path}/scale`, patch('merge-patch', { spec: { replicas: wanted } }))}
    >
      <label>
        {w.pods} <input type="number" min={0} value={typed} onInput={(e) => type(e.currentTarget.value)} />
      </label>
      {wanted !== undefined && <p>{w.scaling(now, wanted)}</p>}
      {scaler && <p class="note">{w.scaler(scaler.metadata.name)}</p>}
    </Dialog>
  );
}

const Restart = ({ object, of, name, path, close }: Asked) => (
  <Dialog
    title={w.restartOf(name)}
    confirm={w.restart}
    close={close}
    act={() => json(path, patch('strategic-merge-patch', restart(new Date().toISOString())))}
  >
    <p>{of.resource === 'daemonsets' ? w.restartingAll : w.restarting(object.spec?.replicas ?? 1)}</p>
  </Dialog>
);

function Rollback({ object, namespace, name, path, close }: Asked) {
  const of = object as unknown as Deployment;
  const asked = useJson<List<ReplicaSet>>(`${pathOf(replicaSets, namespace)}?limit=500`);
  const all = revisions(of, asked.value?.items ?? []);
  const earlier = all.filter((r) => !r.current);
  const [number, choose] = useState<number>();
  const chosen = earlier.find((r) => r.number === number) ?? earlier[0];
  const compared = chosen && diff(lines(of.spec.template), lines(chosen.template));
  return (
    <Dialog
      title={w.rollbackOf(name)}
      confirm={w.rollback}
      ready={!!compared && changed(compared)}
      close={close}
      act={async () => {
        if (chosen) await json(path, patch('json-patch', rollback(of, chosen)));
      }}
    >
      {asked.failure && <Refused failure={asked.failure} what={replicaSets} namespace={namespace} />}
      {!asked.value && !asked.failure && <p class="quiet">{words.loading}</p>}
      {asked.value && !chosen && <p>{w.noRevision}</p>}
      {chosen && (
        <>
          <label>
            {w.revision}{' '}
            <select value={String(chosen.number)} onChange={(e) => choose(Number(e.currentTarget.value))}>
              {earlier.map((r) => (
                <option key={r.number} value={String(r.number)}>
                  {`${r.number}: ${r.cause || some(r.images)}`}
                </option>
              ))}
            </select>
          </label>
          <p>{w.rollingBack(of.spec.replicas ?? 1)}</p>
          {compared && changed(compared) ? <Diff lines={compared} /> : <p>{words.yaml.same}</p>}
        </>
      )}
    </Dialog>
  );
}

function Cordon({ object, name, path, close }: Asked) {
  const off = !!object.spec?.unschedulable;
  return (
    <Dialog
      title={off ? w.uncordonOf(name) : w.cordonOf(name)}
      confirm={off ? w.uncordon : w.cordon}
      close={close}
      act={() => json(path, patch('merge-patch', { spec: { unschedulable: off ? null : true } }))}
    >
      <p>{off ? w.uncordoning : w.cordoning}</p>
    </Dialog>
  );
}

const mostKinds = 100; // that are asked for what an object owns
const asMetadata = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io';
const looked = 500; // objects of a kind

interface Found {
  all: Owned[];
  /** unseen are kinds of which not all objects could be read. */
  unseen: string[];
}

/** useFound has the metadata of a namespace's objects, read once when the question is asked. */
function useFound(namespace: string, kinds: Kind[]): Found | undefined {
  const [found, set] = useState<Found>();
  useEffect(() => {
    if (!namespace || kinds.length === 0) return undefined; // not known yet
    const abort = new AbortController();
    const asked = kinds.filter((k) => k.namespaced && k.verbs.includes('list') && k.resource !== 'events');
    const unseen = asked.slice(mostKinds).map((k) => k.kind);
    const read = async (k: Kind): Promise<Owned[]> => {
      const list = await json<List<{ metadata: Meta }>>(`${pathOf(k, namespace)}?limit=${looked}`, { accept: asMetadata, signal: abort.signal });
      if (list.metadata?.continue) unseen.push(k.kind);
      return list.items.map((o) => ({ kind: k.kind, metadata: o.metadata }));
    };
    const each = asked.slice(0, mostKinds).map((k) =>
      read(k).catch((): Owned[] => {
        if (k.verbs.includes('delete')) unseen.push(k.kind);
        return [];
      }),
    );
    void Promise.all(each).then((all) => {
      if (!abort.signal.aborted) set({ all: all.flat(), unseen });
    });
    return () => abort.abort();
  }, [namespace, kinds]);
  return found;
}

/** Remove asks before an object is deleted, and names what goes with it. */
function Remove({ of, object, name, path, close, namespace }: Asked) {
  const { kinds } = useAround();
  const isNamespace = of.group === '' && of.resource === 'namespaces';
  const within = isNamespace ? name : namespace;
  const found = useFound(within, kinds);
  const [keep, setKeep] = useState(false);
  const uid = object.metadata.uid;
  const goes = isNamespace ? (found?.all ?? []) : belongings(uid, found?.all ?? []);
  const maker = object.metadata.ownerReferences?.find((r) => r.controller);
  return (
    <Dialog
      title={w.removeOf(object.kind ?? of.resource, name)}
      confirm={w.remove}
      danger
      ready={!within || !!found}
      close={close}
      act={() =>
        text(path, {
          method: 'DELETE',
          type: 'application/json',
          body: JSON.stringify({
            apiVersion: 'v1',
            kind: 'DeleteOptions',
            preconditions: { uid },
            propagationPolicy: keep ? 'Orphan' : 'Background',
          }),
        })
      }
    >
      {within && !found && <p class="quiet">{words.loading}</p>}
      {(found || !within) && <p>{goes.length === 0 ? w.nothingElse : keep ? w.stays(goes.length) : w.goes(goes.length)}</p>}
      {goes.length > 0 && (
        <ul class="plainlist">
          {byKind(goes).map((k) => (
            <li key={k.kind}>
              <strong>{w.kindCount(k.names.length, k.kind)}</strong> <span class="quiet">{some(k.names)}</span>
            </li>
          ))}
        </ul>
      )}
      {goes.length > 0 && !isNamespace && (
        <label class="check">
          <input type="checkbox" checked={keep} onChange={(e) => setKeep(e.currentTarget.checked)} /> {w.keep}
        </label>
      )}
      {found && found.unseen.length > 0 && <p class="note">{w.unseen(some(found.unseen))}</p>}
      {maker && <p class="note">{w.again(`${maker.kind} ${maker.name}`)}</p>}
      {of.group === '' && of.resource === 'nodes' && <p class="note">{w.nodeGoes}</p>}
    </Dialog>
  );
}

// SPDX-License-Identifier: Apache-2.0
// One object: why it is as it is, in words; then, for a pod, its story, the scheduler's decision and its logs.
import { useEffect, useState } from 'preact/hooks';
import { Actions } from './actions';
import type { Failure } from './api';
import { useAround, useFeed, useJson, useNow } from './hooks';
import { Logs } from './logs';
import { Command, Refused, Said } from './parts';
import { age, conditionsSay, helps, reasons, scoreTable } from './pure';
import { useMay } from './rights';
import { lastEnd } from './rollout';
import { nodes, objectAt, pathOf, pods } from './route';
import type { Ref } from './route';
import { Shell } from './shell';
import { StoryView, useStory } from './story';
import type { Answer, ContainerStatus, Meta, Pod } from './types';
import { words } from './words';
import { RolloutView, rollsOut } from './workload';
import { Yaml } from './yaml';

const explained = [
  'pods', 'nodes', 'services', 'persistentvolumeclaims', 'horizontalpodautoscalers', 'cronjobs', 'ingresses', 'poddisruptionbudgets',
  'namespaces', 'customresourcedefinitions', 'deployments', 'replicasets', 'statefulsets', 'daemonsets', 'jobs',
];

interface Any {
  kind?: string;
  metadata: Meta;
}

export function ObjectView({ of, namespace, name, tab }: { of: Ref; namespace: string; name: string; tab: string }) {
  const isPod = of.resource === 'pods' && of.group === '';
  const path = pathOf(of, namespace);
  const live = useFeed(path, `&fieldSelector=${encodeURIComponent(`metadata.name=${name}`)}`);
  const row = live ? [...live.rows.values()][0] : undefined;
  const turn = row ? JSON.stringify(row.cells.filter((_, i) => live?.columns[i]?.name !== 'Age')) + (rollsOut(of) ? live?.version : '') : ''; // a rollout has more than its columns
  const object = useJson<Any>(`${path}/${encodeURIComponent(name)}`, turn);
  const [last, keep] = useState<Any>();
  useEffect(() => {
    if (object.value) keep(object.value);
  }, [object.value]);
  const shown = object.value ?? (last?.metadata.name === name ? last : undefined);
  const now = useNow(5_000);
  const why = explained.includes(of.resource);
  const opens = useMay(isPod ? ['get', 'create'].map((verb) => ({ verb, of, subresource: 'exec', namespace, name })) : []);
  const tabs = [
    ...(why ? ['why'] : []),
    ...(isPod ? ['story', 'place', 'logs'] : []),
    ...(opens ? ['terminal'] : []),
    'events',
    'yaml',
  ] as ('why' | 'story' | 'place' | 'logs' | 'terminal' | 'events' | 'yaml')[];
  const current = tabs.find((t) => t === tab) ?? tabs[0]!;
  const gone = object.failure?.code === 404;
  return (
    <section class="object">
      <header>
        <p class="quiet">
          {shown?.kind ?? of.resource}
          {namespace && ` · ${namespace}`}
        </p>
        <h1>{name}</h1>
        {shown && <About object={shown} now={now} />}
        {shown && !gone && <Actions of={of} namespace={namespace} name={name} object={shown} />}
      </header>
      {gone && <div class="note">{words.object.gone}</div>}
      {object.failure && !gone && <Refused failure={object.failure} verb="get" what={of} namespace={namespace} />}
      <nav class="tabs" aria-label={name}>
        {tabs.map((t) => (
          <a key={t} href={objectAt(of, namespace, name, t)} aria-current={t === current ? 'page' : undefined}>
            {words.object[t]}
          </a>
        ))}
      </nav>
      {current === 'why' && <WhyView of={of} namespace={namespace} name={name} turn={turn} pod={isPod ? (shown as Pod | undefined) : undefined} />}
      {current === 'why' && shown && rollsOut(of) && <RolloutView of={of} object={shown} namespace={namespace} />}
      {current === 'story' && <Told namespace={namespace} name={name} />}
      {current === 'place' && <Place namespace={namespace} name={name} turn={turn} />}
      {current === 'logs' && shown && <Logs key={shown.metadata.uid} pod={shown as Pod} />}
      {current === 'terminal' && shown && <Shell pod={shown as Pod} />}
      {current === 'events' && <Events namespace={namespace} name={name} uid={shown?.metadata.uid ?? ''} now={now} />}
      {current === 'yaml' && <Yaml key={path + name} of={of} namespace={namespace} name={name} />}
    </section>
  );
}

function About({ object, now }: { object: Any; now: number }) {
  const { kinds } = useAround();
  const m = object.metadata;
  const node = (object as Partial<Pod>).spec?.nodeName;
  return (
    <p class="about">
      {object.kind === 'Pod' && node && (
        <span>
          {words.object.onNode} <a href={objectAt(nodes, '', node)}>{node}</a>
        </span>
      )}
      {m.ownerReferences?.map((o) => {
        const [group, version] = o.apiVersion.includes('/') ? o.apiVersion.split('/') : ['', o.apiVersion];
        const kind = kinds.find((k) => k.kind === o.kind && k.group === group);
        const text = `${o.kind} ${o.name}`;
        return (
          <span key={o.name}>
            {words.object.ownedBy}{' '}
            {kind ? <a href={objectAt({ group: kind.group, version: version ?? '', resource: kind.resource }, m.namespace ?? '', o.name)}>{text}</a> : text}
          </span>
        );
      })}
      {m.creationTimestamp && <span>{`${words.object.age} ${age(now - Date.parse(m.creationTimestamp))}`}</span>}
      {m.deletionTimestamp && <span class="bad">{words.object.deleting}</span>}
    </p>
  );
}

const askPath = (resource: string, namespace: string, name: string) =>
  `/keelson/v1/ask/why/${encodeURIComponent(resource)}/${encodeURIComponent(name)}${namespace ? `?namespace=${encodeURIComponent(namespace)}` : ''}`;

function WhyView(props: { of: Ref; namespace: string; name: string; turn: string; pod: Pod | undefined }) {
  const { of, namespace, name, pod } = props;
  const asked = useJson<Answer>(askPath(of.resource, namespace, name), props.turn);
  const now = useNow(5_000);
  const foreign = asked.failure && [403, 404].includes(asked.failure.code) && pod;
  const answer = asked.value;
  const said = answer ? reasons(answer) : foreign ? conditionsSay(pod) : [];
  const help = answer ? helps(answer) : [];
  const w = words.why;
  const decision = answer?.pod?.decision;
  return (
    <div class="why">
      {!answer && !asked.failure && <p class="quiet">{words.loading}</p>}
      {asked.failure && !foreign && <p class="quiet">{asked.failure.message}</p>}
      {foreign && <p class="quiet">{w.stock}</p>}
      {answer?.pod && !answer.pod.node && decision && <p class="lead">{w.noneFits(decision.nodes)}</p>}
      {said.map((s) => (
        <p class="reason" key={s}>
          <Said text={s} />
        </p>
      ))}
      {answer && said.length === 0 && <p class="lead good">{answer.object?.state || w.well}</p>}
      {answer?.pod?.node && decision && <p class="quiet">{w.fits(answer.pod.node, decision.fit, decision.nodes)}</p>}
      {answer?.pod?.node && answer.pod.reason && <p class="quiet">{answer.pod.reason}</p>}
      {answer?.pod?.fake && <p class="quiet">{answer.pod.fake}</p>}
      {answer?.pod && !answer.pod.node && decision && <p class="quiet">{w.tried(answer.pod.tries ?? 1, answer.pod.next ?? '')}</p>}
      {help.length > 0 && (
        <div class="help">
          <h2>{answer?.pod && !answer.pod.node ? w.nearest : w.next}</h2>
          <ul>
            {help.map((h) => (
              <li key={h}>
                <Said text={h} />
              </li>
            ))}
          </ul>
        </div>
      )}
      {(answer?.object?.unknown?.length ?? 0) > 0 && (
        <div class="help">
          <h2>{w.unknown}</h2>
          <ul>
            {answer?.object?.unknown?.map((u) => <li key={u}>{u}</li>)}
          </ul>
        </div>
      )}
      {answer?.pods && answer.pods.length > 0 && (
        <ul class="plainlist">
          {answer.pods.map((p) => (
            <li key={p.name}>
              <a href={objectAt(pods, namespace, p.name)}>{p.name}</a> <span class="quiet">{`${p.status}${p.node ? ` · ${p.node}` : ''}`}</span>
            </li>
          ))}
        </ul>
      )}
      {pod && <Containers pod={pod} now={now} />}
    </div>
  );
}

function Containers({ pod, now }: { pod: Pod; now: number }) {
  const all = [...(pod.status.initContainerStatuses ?? []), ...(pod.status.containerStatuses ?? [])];
  if (all.length === 0) return null;
  return (
    <div class="containers">
      <h2>{words.why.containers}</h2>
      <ul class="plainlist">
        {all.map((c) => (
          <li key={c.name}>
            <strong>{c.name}</strong> <span class={c.ready ? 'good' : 'quiet'}>{stateOf(c, now)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function stateOf(c: ContainerStatus, now: number): string {
  const w = words.why;
  const out: string[] = [];
  if (c.state?.running) {
    out.push(w.runs(age(now - Date.parse(c.state.running.startedAt ?? ''))), c.ready ? w.ready : w.notReady);
  } else if (c.state?.terminated) out.push(w.exit(c.state.terminated.exitCode, c.state.terminated.reason ?? ''));
  else if (c.state?.waiting) out.push(w.waits(c.state.waiting.reason ?? ''));
  if (c.restartCount > 0) out.push(w.restarts(c.restartCount));
  const last = c.state?.terminated ? undefined : lastEnd(c);
  if (last) out.push(w.lastEnd(last.code, last.outOfMemory, Number.isNaN(last.at) ? '' : age(now - last.at)));
  return out.join(', ');
}

const Told = ({ namespace, name }: { namespace: string; name: string }) => <StoryView telling={useStory(namespace, name)} />;

/** Place shows the scheduler's decision: nodes and what each plugin gave them. */
function Place({ namespace, name, turn }: { namespace: string; name: string; turn: string }) {
  const asked = useJson<Answer>(askPath('pods', namespace, name), turn);
  const w = words.place;
  const decision = asked.value?.pod?.decision;
  if (!decision) return <p class="quiet">{asked.value || asked.failure ? asked.failure?.message || w.none : words.loading}</p>;
  const t = scoreTable(decision);
  return (
    <div class="place">
      {t.rows.length > 0 && (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>{w.node}</th>
                {t.plugins.map((p) => (
                  <th key={p.name} class="number">
                    {p.name} <span class="quiet">{w.weight(p.weight)}</span>
                  </th>
                ))}
                <th class="number">{w.total}</th>
              </tr>
            </thead>
            <tbody>
              {t.rows.map((r) => (
                <tr key={r.node} class={r.winner ? 'winner' : ''}>
                  <th scope="row">
                    <a href={objectAt(nodes, '', r.node)}>{r.node}</a> {r.winner && <span class="tag">{w.winner}</span>}
                    {r.runnerUp && <span class="tag pale">{w.runnerUp}</span>}
                  </th>
                  {r.scores.map((s, i) => (
                    <td key={i} class="number">
                      {s ?? '–'}
                    </td>
                  ))}
                  <td class="number total">{r.total}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {t.rows.length > 0 && <p class="quiet">{w.how}</p>}
      {t.refused.length > 0 && (
        <>
          <h2>{w.refused}</h2>
          <div class="scroll">
            <table>
              <tbody>
                {t.refused.map((r) => (
                  <tr key={r.node}>
                    <th scope="row">
                      <a href={objectAt(nodes, '', r.node)}>{r.node}</a>
                    </th>
                    <td class="quiet">{r.plugin}</td>
                    <td>{r.reason}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </div>
  );
}

interface Event {
  metadata: { uid: string; creationTimestamp: string };
  involvedObject?: { uid?: string };
  type?: string;
  reason?: string;
  message?: string;
  count?: number;
  lastTimestamp?: string | null;
  eventTime?: string | null;
  series?: { count?: number; lastObservedTime?: string };
}

const timeOf = (e: Event) => Date.parse(e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp);

function Events({ namespace, name, uid, now }: { namespace: string; name: string; uid: string; now: number }) {
  const selector = `involvedObject.name=${name}`;
  const query = `fieldSelector=${encodeURIComponent(selector)}`;
  const path = pathOf({ group: '', version: 'v1', resource: 'events' }, namespace);
  const live = useFeed(path, `&${query}`);
  const asked = useJson<{ items: Event[] }>(`${path}?limit=500&${query}`, live ? [...live.rows.values()].map((r) => r.meta.uid + r.cells.join()).join() : '');
  const failure: Failure | undefined = asked.failure;
  if (failure) return <Refused failure={failure} what={{ group: '', version: 'v1', resource: 'events' }} namespace={namespace} />;
  const own = (e: Event) => !uid || !e.involvedObject?.uid || e.involvedObject.uid === uid;
  const items = (asked.value?.items ?? []).filter(own).sort((a, b) => timeOf(b) - timeOf(a));
  if (asked.value && items.length === 0) return <p class="quiet">{words.events.none}</p>;
  return (
    <ol class="events">
      {items.map((e) => {
        const count = e.series?.count ?? e.count ?? 1;
        return (
          <li key={e.metadata.uid} class={e.type === 'Warning' ? 'warning' : ''}>
            <p>
              <strong>{e.reason}</strong> <span class="quiet">{`${words.events.ago(age(now - timeOf(e)))}${count > 1 ? ` · ${words.events.times(count)}` : ''}`}</span>
            </p>
            <p>{e.message}</p>
          </li>
        );
      })}
    </ol>
  );
}

export { Command };

// SPDX-License-Identifier: Apache-2.0
// What an action would do, concluded before it is done. Pure; test/acts.test.ts has it.
import type { Deployment, Meta, Owned, PodDisruptionBudget, ReplicaSet, Selector, WholePod } from './types';

/** belongings are the objects that go when their owner goes: those that name it, and those that name these. */
export function belongings(uid: string, all: Owned[]): Owned[] {
  const gone = new Set([uid]);
  const out: Owned[] = [];
  for (let found = true; found; ) {
    found = false;
    for (const o of all) {
      const owners = o.metadata.ownerReferences ?? [];
      if (gone.has(o.metadata.uid) || owners.length === 0 || !owners.every((r) => gone.has(r.uid))) continue;
      gone.add(o.metadata.uid);
      out.push(o);
      found = true;
    }
  }
  return out;
}

/** byKind counts objects of each kind and names the first few. */
export function byKind(objects: Owned[]): { kind: string; names: string[] }[] {
  const out = new Map<string, string[]>();
  for (const o of objects) out.set(o.kind, [...(out.get(o.kind) ?? []), o.metadata.name]);
  return [...out].map(([kind, names]) => ({ kind, names: names.sort() })).sort((a, b) => a.kind.localeCompare(b.kind));
}

const revisionOf = (m: Meta) => Number(m.annotations?.['deployment.kubernetes.io/revision'] ?? 0);

export interface Revision {
  number: number;
  name: string;
  current: boolean;
  images: string[];
  cause: string;
  template: ReplicaSet['spec']['template'];
}

/** revisions of a Deployment, the newest first. */
export function revisions(of: Deployment, sets: ReplicaSet[]): Revision[] {
  const own = sets.filter((s) => s.metadata.ownerReferences?.some((r) => r.uid === of.metadata.uid));
  const newest = revisionOf(of.metadata);
  return own
    .map((s) => ({
      number: revisionOf(s.metadata),
      name: s.metadata.name,
      current: revisionOf(s.metadata) === newest,
      images: s.spec.template.spec.containers.map((c) => c.image ?? ''),
      cause: s.metadata.annotations?.['kubernetes.io/change-cause'] ?? '',
      template: withoutHash(s.spec.template),
    }))
    .filter((r) => r.number > 0)
    .sort((a, b) => b.number - a.number);
}

/** withoutHash is a ReplicaSet's template as its Deployment had it. */
function withoutHash(template: ReplicaSet['spec']['template']): ReplicaSet['spec']['template'] {
  const labels = { ...template.metadata?.labels };
  delete labels['pod-template-hash'];
  return { ...template, metadata: { ...template.metadata, labels } };
}

/** rollback makes a Deployment's template that of a revision; one that was changed meanwhile is left alone. */
export const rollback = (of: Deployment, to: Revision) => [
  { op: 'test', path: '/metadata/resourceVersion', value: of.metadata.resourceVersion },
  { op: 'replace', path: '/spec/template', value: to.template },
];

/** restart is kubectl's way: an annotation of the template, whose change replaces the pods. */
export const restart = (now: string) => ({
  spec: { template: { metadata: { annotations: { 'kubectl.kubernetes.io/restartedAt': now } } } },
});

/** lines are an object's fields in one order, one a line, for a comparison. */
export function lines(value: unknown): string {
  return JSON.stringify(value, (_, v: unknown) => (v && typeof v === 'object' && !Array.isArray(v) ? Object.fromEntries(Object.entries(v).sort(([a], [b]) => (a < b ? -1 : 1))) : v), 2);
}

/** selects reports whether a selector has an object; one that is absent has none, an empty one has all. */
export function selects(s: Selector | undefined, labels: Record<string, string>): boolean {
  if (!s) return false;
  if (Object.entries(s.matchLabels ?? {}).some(([k, v]) => labels[k] !== v)) return false;
  return (s.matchExpressions ?? []).every((e) => {
    const value = labels[e.key];
    switch (e.operator) {
      case 'In':
        return value !== undefined && !!e.values?.includes(value);
      case 'NotIn':
        return value === undefined || !e.values?.includes(value);
      case 'Exists':
        return value !== undefined;
      case 'DoesNotExist':
        return value === undefined;
      default:
        return false;
    }
  });
}

export interface DrainPlan {
  leave: WholePod[];
  /** stay are pods of DaemonSets, and those that the node has by itself. */
  stay: WholePod[];
  /** alone are pods that nothing makes again. */
  alone: WholePod[];
  /** scratch are pods whose emptyDir volumes are lost. */
  scratch: WholePod[];
  /** budgets let fewer of their pods go now than are on the node. */
  budgets: { namespace: string; name: string; allowed: number; pods: string[] }[];
}

/** drainPlan says which pods of a node leave it, and what is in the way. */
export function drainPlan(pods: WholePod[], budgets: PodDisruptionBudget[]): DrainPlan {
  const plan: DrainPlan = { leave: [], stay: [], alone: [], scratch: [], budgets: [] };
  for (const p of pods) {
    const owner = p.metadata.ownerReferences?.find((r) => r.controller);
    const ended = p.status.phase === 'Succeeded' || p.status.phase === 'Failed';
    if (p.metadata.annotations?.['kubernetes.io/config.mirror'] !== undefined || (owner?.kind === 'DaemonSet' && !ended)) {
      plan.stay.push(p);
      continue;
    }
    plan.leave.push(p);
    if (ended) continue;
    if (!owner) plan.alone.push(p);
    if (p.spec.volumes?.some((v) => v.emptyDir)) plan.scratch.push(p);
  }
  for (const b of budgets) {
    const own = plan.leave.filter(
      (p) => p.metadata.namespace === b.metadata.namespace && p.status.phase === 'Running' && selects(b.spec.selector, p.metadata.labels ?? {}),
    );
    const allowed = b.status?.disruptionsAllowed ?? 0;
    if (own.length > allowed) {
      plan.budgets.push({ namespace: b.metadata.namespace ?? '', name: b.metadata.name, allowed, pods: own.map((p) => p.metadata.name) });
    }
  }
  return plan;
}

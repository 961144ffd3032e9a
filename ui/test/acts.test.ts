// SPDX-License-Identifier: Apache-2.0
import { equal, deepEqual } from 'node:assert/strict';
import { test } from 'node:test';
import { belongings, byKind, drainPlan, lines, restart, revisions, rollback, selects } from '../src/acts';
import type { Deployment, Meta, Owned, PodDisruptionBudget, ReplicaSet, WholePod } from '../src/types';

const owner = (uid: string, kind = 'ReplicaSet') => ({ uid, kind, name: uid, apiVersion: 'apps/v1', controller: true });

const owned = (kind: string, uid: string, ...owners: string[]): Owned => ({
  kind,
  metadata: { name: uid, uid, ownerReferences: owners.map((o) => owner(o)) },
});

test('what goes with an object: what it owns, and what that owns, unless another owner stays', () => {
  const all = [
    owned('Pod', 'p1', 'rs'),
    owned('ReplicaSet', 'rs', 'web'),
    owned('Pod', 'p2', 'rs'),
    owned('Pod', 'other', 'rs2'),
    owned('ConfigMap', 'shared', 'web', 'stays'),
    owned('ConfigMap', 'free'),
  ];
  deepEqual(byKind(belongings('web', all)), [{ kind: 'Pod', names: ['p1', 'p2'] }, { kind: 'ReplicaSet', names: ['rs'] }]);
  deepEqual(belongings('p1', all), []);
  deepEqual(belongings('a', [owned('X', 'a', 'b'), owned('X', 'b', 'a')]).map((o) => o.metadata.uid), ['b']); // a circle ends
});

const deployment: Deployment = {
  metadata: { name: 'web', uid: 'web', resourceVersion: '7', annotations: { 'deployment.kubernetes.io/revision': '3' } },
  spec: { replicas: 2, template: { metadata: { labels: { app: 'web' } }, spec: { containers: [{ name: 'a', image: 'v3' }] } } },
};

const set = (revision: string, image: string, of = 'web'): ReplicaSet => ({
  metadata: { name: `${of}-${revision}`, uid: `${of}-${revision}`, annotations: { 'deployment.kubernetes.io/revision': revision }, ownerReferences: [owner(of, 'Deployment')] },
  spec: { template: { metadata: { labels: { app: 'web', 'pod-template-hash': 'x' } }, spec: { containers: [{ name: 'a', image }] } } },
});

test('revisions, the newest first, and the patch that goes back', () => {
  const found = revisions(deployment, [set('1', 'v1'), set('3', 'v3'), set('2', 'v2'), set('10', 'v9', 'other')]);
  deepEqual(found.map((r) => [r.number, r.current, r.images]), [[3, true, ['v3']], [2, false, ['v2']], [1, false, ['v1']]]);
  deepEqual(found[1]!.template.metadata?.labels, { app: 'web' });
  deepEqual(rollback(deployment, found[1]!)[0], { op: 'test', path: '/metadata/resourceVersion', value: '7' });
  equal(lines({ b: 1, a: [{ d: 2, c: 3 }] }), lines({ a: [{ c: 3, d: 2 }], b: 1 }));
  equal(restart('T').spec.template.metadata.annotations['kubectl.kubernetes.io/restartedAt'], 'T');
});

test('selectors', () => {
  equal(selects(undefined, {}), false);
  equal(selects({}, {}), true);
  equal(selects({ matchLabels: { a: '1' } }, { a: '2' }), false);
  const expression = (operator: string, values?: string[]) => ({ matchExpressions: [{ key: 'a', operator, ...(values && { values }) }] });
  deepEqual(
    [expression('In', ['1']), expression('NotIn', ['1']), expression('Exists'), expression('DoesNotExist'), expression('Near')].map((s) => [
      selects(s, { a: '1' }),
      selects(s, {}),
    ]),
    [[true, false], [false, true], [true, false], [false, true], [false, false]],
  );
});

function pod(name: string, more: Partial<Meta> = {}, rest: Partial<WholePod> = {}): WholePod {
  return { metadata: { name, namespace: 'shop', uid: name, ...more }, spec: {}, status: { phase: 'Running' }, ...rest };
}

test('a drain: what leaves, what stays, and what is in the way', () => {
  const made = { ownerReferences: [owner('rs')], labels: { app: 'web' } };
  const pods = [
    pod('web-1', made),
    pod('web-2', made, { spec: { volumes: [{ name: 'tmp', emptyDir: {} }] } }),
    pod('alone'),
    pod('done', {}, { status: { phase: 'Succeeded' }, spec: { volumes: [{ name: 'tmp', emptyDir: {} }] } }),
    pod('agent', { ownerReferences: [owner('ds', 'DaemonSet')] }),
    pod('static', { annotations: { 'kubernetes.io/config.mirror': 'x' } }),
  ];
  const budget = (name: string, allowed: number, namespace = 'shop'): PodDisruptionBudget => ({
    metadata: { name, namespace, uid: name },
    spec: { selector: { matchLabels: { app: 'web' } } },
    status: { disruptionsAllowed: allowed },
  });
  const plan = drainPlan(pods, [budget('tight', 1), budget('wide', 2), budget('elsewhere', 0, 'other')]);
  const names = (all: WholePod[]) => all.map((p) => p.metadata.name);
  deepEqual(names(plan.leave), ['web-1', 'web-2', 'alone', 'done']);
  deepEqual(names(plan.stay), ['agent', 'static']);
  deepEqual(names(plan.alone), ['alone']);
  deepEqual(names(plan.scratch), ['web-2']);
  deepEqual(plan.budgets, [{ namespace: 'shop', name: 'tight', allowed: 1, pods: ['web-1', 'web-2'] }]);
});

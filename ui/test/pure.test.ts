// SPDX-License-Identifier: Apache-2.0
import { equal, deepEqual, ok } from 'node:assert/strict';
import { test } from 'node:test';
import {
  age, conditionsSay, diff, health, helps, layOut, masked, matcher, pieces, place, problems, reasons, scale, scoreTable, some, sortRows, span,
  withoutManagedFields, workload,
} from '../src/pure';
import { listAt, objectAt, parse, pathOf, pods } from '../src/route';
import type { Column, Decision, Row, Story } from '../src/types';

const columns: Column[] = ['Name', 'Ready', 'Status', 'Restarts', 'Age'].map((name) => ({ name, type: 'string', priority: 0 }));
const now = Date.parse('2026-01-01T00:10:00Z');

function pod(name: string, ready: string, status: string, more: Partial<Row['meta']> = {}): Row {
  return {
    cells: [name, ready, status, 0, '1m'],
    meta: { name, namespace: 'shop', uid: name, creationTimestamp: '2026-01-01T00:00:00Z', ...more },
  };
}

const of = (deploy: string) => ({
  labels: { 'pod-template-hash': 'abc' },
  ownerReferences: [{ kind: 'ReplicaSet', name: `${deploy}-abc`, uid: '1', apiVersion: 'apps/v1', controller: true }],
});

test('times', () => {
  equal(age(0), '0s');
  equal(age(-5_000), '0s'); // a clock that differs
  equal(age(119_000), '119s');
  equal(age(125_000), '2m5s');
  equal(age(3 * 3_600_000 + 60_000), '3h1m');
  equal(age(49 * 3_600_000), '2d');
  equal(span(950), '1 µs');
  equal(span(3_400_000), '3.4 ms');
  equal(span(357_494_185), '357 ms');
  equal(span(2_590_000_000), '2.59 s');
});

test('pods that are not well are grouped by workload', () => {
  const rows = [
    pod('web-abc-1', '0/1', 'ImagePullBackOff', of('web')),
    pod('web-abc-2', '0/1', 'ErrImagePull', of('web')),
    pod('ok', '1/1', 'Running'),
    pod('done', '0/1', 'Completed'),
    pod('alone', '0/1', 'CrashLoopBackOff'),
    pod('slow', '0/1', 'Running'),
    pod('new', '0/1', 'Pending', { creationTimestamp: '2026-01-01T00:09:50Z' }),
    pod('stuck', '1/1', 'Terminating', { deletionTimestamp: '2026-01-01T00:01:00Z' }),
    pod('going', '1/1', 'Terminating', { deletionTimestamp: '2026-01-01T00:10:10Z' }),
  ];
  deepEqual(problems(columns, rows, now).map((p) => [p.workload, p.status, p.pods, p.unready]), [
    ['web', 'ImagePullBackOff', ['web-abc-1', 'web-abc-2'], false],
    ['alone', 'CrashLoopBackOff', ['alone'], false],
    ['slow', 'Running', ['slow'], true],
    ['stuck', 'Terminating', ['stuck'], false],
  ]);
  equal(health(columns, rows[6]!, now), 'starting');
  equal(health(columns, rows[8]!, now), 'leaving');
  equal(workload(pod('x', '', '', { ownerReferences: [{ kind: 'Job', name: 'backup', uid: '1', apiVersion: 'batch/v1' }] }).meta), 'backup');
});

test('why in words', () => {
  const decision: Decision = {
    attempt: 1,
    nodes: 4,
    fit: 0,
    rejected: [
      { node: 'a', plugin: 'P', reason: 'taint' },
      { node: 'b', plugin: 'P', reason: 'taint' },
      { node: 'c', plugin: 'R', reason: 'Insufficient cpu', short: 'cpu: asks 100, free 2 of 2' },
    ],
    fixes: ['fits on c if cpu request <= 2'],
  };
  const pending = { pod: { namespace: 'n', name: 'p', decision } };
  deepEqual(reasons(pending), ['c: cpu: asks 100, free 2 of 2', 'a, b: taint']);
  deepEqual(helps(pending), ['fits on c if cpu request <= 2']);
  deepEqual(reasons({ pod: { ...pending.pod, node: 'c', notReady: ['container app waits'] } }), ['container app waits']);
  deepEqual(reasons({ object: { kind: 'Node', name: 'n', state: 'Ready', why: ['silent'] } }), ['silent']);
  deepEqual(reasons({}), []);
  equal(some(['a', 'b', 'c', 'd', 'e']), 'a, b, c + 2');
  deepEqual(pieces('run `x y` now'), [
    { text: 'run ', command: false },
    { text: 'x y', command: true },
    { text: ' now', command: false },
  ]);
  deepEqual(
    conditionsSay({
      metadata: { name: 'p', uid: 'p' },
      spec: { containers: [{ name: 'app' }] },
      status: { conditions: [{ type: 'PodScheduled', status: 'False', message: '0/3 nodes are available' }] },
    }),
    ['0/3 nodes are available'],
  );
});

test('a story is laid out to scale, with idle times folded', () => {
  const story: Story = {
    namespace: 'n', name: 'p', phase: 'Running', start: '', total: 10_000, accounted: 200, done: true,
    steps: [
      { at: 0, took: 100, who: 'apiserver', what: 'POST pods by admin (kubectl)', parts: [{ at: 50, took: 50, who: 'store', what: '' }] },
      { at: 100, took: 10, who: 'apiserver', what: '', watch: { resource: 'pods', revision: 1 }, parts: [{ at: 100, took: 10, who: 'kubelet n', what: '' }] },
      { at: 9_900, took: 100, who: 'kubelet n', what: 'Ready', error: 'no' },
    ],
  };
  const laid = layOut(story);
  deepEqual(laid.lanes, ['client', 'apiserver', 'store', 'kubelet']);
  deepEqual(laid.bars.map((b) => [b.lane, b.failed]), [['apiserver', false], ['store', false], ['kubelet', true]]);
  deepEqual(laid.arrows, [
    { at: 0, from: 'client', to: 'apiserver', took: 0 },
    { at: 110, from: 'apiserver', to: 'kubelet', took: 10 },
  ]);
  deepEqual(laid.segments.map((s) => s.folded), [false, true, false]);
  equal(place(laid.segments, 0), 0);
  equal(place(laid.segments, 10_000), 1);
  const both = [100, 9_900].map((t) => place(laid.segments, t));
  ok(both[0]! < both[1]! && both[1]! - both[0]! < 0.05, `${both}`);
  equal(place(laid.segments, 99_999), 1);
});

test('a scale has the whole width, whatever its bars', () => {
  for (let seed = 1; seed < 200; seed++) {
    let x = seed;
    const random = (n: number) => (x = (x * 48_271) % 2_147_483_647) % n;
    const bars = Array.from({ length: random(30) }, () => ({ at: random(1_000_000), took: random(10_000) }));
    const segments = scale(bars, 1_000_000);
    const width = segments.reduce((sum, s) => sum + s.width, 0);
    ok(Math.abs(width - 1) < 1e-9, `seed ${seed}: width ${width}`);
    let before = -1;
    for (const b of bars.sort((a, c) => a.at - c.at)) {
      const at = place(segments, b.at);
      ok(at >= before && at >= 0 && at <= 1 + 1e-9, `seed ${seed}: ${before}, ${at}`);
      before = at;
    }
  }
});

test('scores', () => {
  const t = scoreTable({
    attempt: 1, nodes: 3, fit: 2, chosen: 'b',
    scores: [
      { node: 'a', total: 50, plugins: [{ plugin: 'Fit', raw: 50, score: 50, weight: 1 }] },
      { node: 'b', total: 250, plugins: [{ plugin: 'Fit', raw: 50, score: 50, weight: 1 }, { plugin: 'Spread', raw: 1, score: 100, weight: 2 }] },
    ],
    rejected: [{ node: 'c', plugin: 'Taint', reason: 'r', short: 's' }],
  });
  deepEqual(t.rows.map((r) => [r.node, r.scores, r.winner, r.runnerUp]), [['b', [50, 200], true, false], ['a', [50, undefined], false, true]]);
  deepEqual(t.refused, [{ node: 'c', plugin: 'Taint', reason: 's' }]);
});

test('YAML', () => {
  const yaml = [
    'apiVersion: v1', 'data:', '  password: c2VjcmV0', '  long: |', '    bW9yZQ==', '    c2VjcmV0', 'kind: Secret', 'metadata:', '  annotations:',
    '    kubectl.kubernetes.io/last-applied-configuration: |', '      {"data":{"password":"c2VjcmV0"}}', '  managedFields:', '  - apiVersion: v1',
    '    fieldsV1:', '      f:data: {}', '  name: a', 'type: Opaque', '',
  ].join('\n');
  const clean = withoutManagedFields(yaml);
  ok(!clean.includes('fieldsV1') && clean.includes('  name: a'), clean);
  const hidden = masked(clean);
  ok(!hidden.includes('c2VjcmV0') && !hidden.includes('bW9yZQ'), hidden);
  ok(hidden.includes('  password: ••••••') && hidden.includes('  name: a') && hidden.includes('type: Opaque'), hidden);
});

test('differences', () => {
  deepEqual(diff('a\nb\nc', 'a\nx\nc'), [
    { sign: ' ', text: 'a' }, { sign: '-', text: 'b' }, { sign: '+', text: 'x' }, { sign: ' ', text: 'c' },
  ]);
  deepEqual(diff('a', 'a'), [{ sign: ' ', text: 'a' }]);
  for (const [before, after] of [['', 'x\ny'], ['x\ny\nz', 'y'], ['a\na\na', 'a\na'], ['b\na', 'a\nb']] as const) {
    const lines = diff(before, after);
    equal(lines.filter((l) => l.sign !== '+').map((l) => l.text).join('\n'), before);
    equal(lines.filter((l) => l.sign !== '-').map((l) => l.text).join('\n'), after);
  }
});

test('filters and order', () => {
  ok(matcher('ERROR')('an error'));
  ok(matcher('/err.r$/')('an error') && !matcher('/err.r$/')('an error!'));
  ok(!matcher('/(/')('(')); // no expression: it finds nothing, and throws nothing
  const rows = [pod('web-10', '', ''), pod('web-9', '', '')];
  deepEqual(sortRows(rows, columns, 'Name', false).map((r) => r.meta.name), ['web-9', 'web-10']);
  deepEqual(sortRows(rows, columns, 'Name', true).map((r) => r.meta.name), ['web-10', 'web-9']);
});

test('addresses lead back to what they name', () => {
  for (const name of ['web', 'a/b', '-', '%2F', '<script>', 'ü #?']) {
    const at = parse(objectAt({ group: '', version: 'v1', resource: 'pods' }, 'shop', name, 'logs'));
    ok(at.view === 'object' && at.name === name && at.namespace === 'shop' && at.tab === 'logs' && at.group === '', name);
  }
  deepEqual(parse(listAt({ group: 'apps', version: 'v1', resource: 'deployments' })), {
    view: 'list', group: 'apps', version: 'v1', resource: 'deployments', namespace: '',
  });
  equal(parse('#/%E0%A4%A').view, 'unknown');
  equal(parse('').view, 'overview');
  equal(pathOf(pods, 'a', 'b/../c'), '/api/v1/namespaces/a/pods/b%2F..%2Fc');
});

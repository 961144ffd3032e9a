// SPDX-License-Identifier: Apache-2.0
import { deepEqual, equal } from 'node:assert/strict';
import { test } from 'node:test';
import { lastEnd, rollout, sets } from '../src/rollout';
import type { Workload } from '../src/rollout';
import type { ReplicaSet } from '../src/types';

const deployment = (status: Workload['status'], spec: Workload['spec'] = { replicas: 3 }, generation = 2): Workload => ({
  kind: 'Deployment',
  metadata: { name: 'web', uid: 'web', generation, annotations: { 'deployment.kubernetes.io/revision': '2' } },
  spec,
  status: { observedGeneration: 2, ...status },
});

test('what a rollout waits for', () => {
  const of = (status: Workload['status'], ...rest: [Workload['spec']?, number?]) => rollout(deployment(status, ...rest)).wait;
  const done = { replicas: 3, updatedReplicas: 3, readyReplicas: 3, availableReplicas: 3 };
  equal(of(done), '');
  equal(of(done, { replicas: 3 }, 3), 'controller');
  equal(of({ replicas: 4, updatedReplicas: 1, availableReplicas: 3 }), 'update');
  equal(of({ replicas: 4, updatedReplicas: 1, availableReplicas: 3 }, { replicas: 3, paused: true }), 'paused');
  equal(of({ replicas: 4, updatedReplicas: 3, availableReplicas: 3 }), 'old');
  equal(of({ replicas: 3, updatedReplicas: 3, availableReplicas: 2 }), 'available');
  equal(of({}, { replicas: 0 }), '');
  const stuck = rollout(deployment({ updatedReplicas: 1, conditions: [{ type: 'Progressing', status: 'False', reason: 'ProgressDeadlineExceeded', message: 'late' }] }));
  deepEqual([stuck.wait, stuck.message], ['stuck', 'late']);
  const daemon = rollout({ kind: 'DaemonSet', metadata: { name: 'a', uid: 'a' }, status: { desiredNumberScheduled: 5, updatedNumberScheduled: 2, numberReady: 4, numberAvailable: 4 } });
  deepEqual(daemon, { wanted: 5, updated: 2, ready: 4, available: 4, old: 3, wait: 'update', message: '' });
});

test('old and new ReplicaSets', () => {
  const set = (revision: string, replicas: number, readyReplicas: number, owner = 'web'): ReplicaSet => ({
    metadata: { name: `web-${revision}`, uid: revision, annotations: { 'deployment.kubernetes.io/revision': revision }, ownerReferences: [{ kind: 'Deployment', name: owner, uid: owner, apiVersion: 'apps/v1' }] },
    spec: { replicas, template: { spec: { containers: [] } } },
    status: { readyReplicas },
  });
  const found = sets(deployment({}).metadata, [set('1', 2, 2), set('2', 1, 0), set('0', 0, 0), set('9', 1, 1, 'other')]);
  deepEqual(found.map((s) => [s.name, s.wanted, s.ready, s.current]), [['web-2', 1, 0, true], ['web-1', 2, 2, false]]);
});

test('how a container last ended', () => {
  const status = { name: 'a', ready: false, restartCount: 1 };
  equal(lastEnd(status), undefined);
  const at = '2026-01-01T00:00:00Z';
  deepEqual(lastEnd({ ...status, lastState: { terminated: { exitCode: 137, reason: 'OOMKilled', finishedAt: at } } }), {
    code: 137,
    outOfMemory: true,
    reason: 'OOMKilled',
    at: Date.parse(at),
  });
});

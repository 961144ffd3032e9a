// SPDX-License-Identifier: Apache-2.0
// How far a workload's rollout is, and what became of containers. Pure; test/rollout.test.ts has it.
import type { ContainerStatus, Meta, ReplicaSet } from './types';

export interface Workload {
  kind?: string;
  metadata: Meta;
  spec?: { replicas?: number; paused?: boolean };
  status?: {
    observedGeneration?: number;
    replicas?: number;
    updatedReplicas?: number;
    readyReplicas?: number;
    availableReplicas?: number;
    desiredNumberScheduled?: number;
    updatedNumberScheduled?: number;
    numberReady?: number;
    numberAvailable?: number;
    conditions?: { type: string; status: string; reason?: string; message?: string }[];
  };
}

/** Wait is what a rollout waits for. */
export type Wait = 'controller' | 'paused' | 'stuck' | 'update' | 'old' | 'available' | '';

export interface Rollout {
  wanted: number;
  updated: number;
  ready: number;
  available: number;
  /** old pods are of an earlier template. */
  old: number;
  wait: Wait;
  /** message is the server's, where the rollout is stuck. */
  message: string;
}

/** rollout reads a workload's status, as kubectl rollout status does. */
export function rollout(w: Workload): Rollout {
  const s = w.status ?? {};
  const daemon = w.kind === 'DaemonSet';
  const wanted = (daemon ? s.desiredNumberScheduled : (w.spec?.replicas ?? 1)) ?? 0;
  const updated = (daemon ? s.updatedNumberScheduled : s.updatedReplicas) ?? 0;
  const ready = (daemon ? s.numberReady : s.readyReplicas) ?? 0;
  const available = (daemon ? s.numberAvailable : s.availableReplicas) ?? 0;
  const old = daemon ? Math.max(0, wanted - updated) : Math.max(0, (s.replicas ?? 0) - updated);
  const stuck = s.conditions?.find((c) => c.type === 'Progressing' && c.reason === 'ProgressDeadlineExceeded');
  const refused = s.conditions?.find((c) => c.type === 'ReplicaFailure' && c.status === 'True');
  const out = { wanted, updated, ready, available, old, message: stuck?.message ?? refused?.message ?? '' };
  return { ...out, wait: waits(w, out, !!(stuck ?? refused)) };
}

function waits(w: Workload, r: Omit<Rollout, 'wait'>, stuck: boolean): Wait {
  if ((w.metadata.generation ?? 0) > (w.status?.observedGeneration ?? 0)) return 'controller';
  const goesOn = r.updated < r.wanted || r.old > 0 || r.available < r.updated;
  if (!goesOn) return '';
  if (w.spec?.paused) return 'paused';
  if (stuck) return 'stuck';
  if (r.updated < r.wanted) return 'update';
  return r.available < r.updated ? 'available' : 'old';
}

/** sets are a Deployment's ReplicaSets that have pods, the newest first. */
export function sets(of: Meta, all: ReplicaSet[]): { name: string; revision: number; wanted: number; ready: number; current: boolean }[] {
  const revisionOf = (m: Meta) => Number(m.annotations?.['deployment.kubernetes.io/revision'] ?? 0);
  return all
    .filter((s) => s.metadata.ownerReferences?.some((r) => r.uid === of.uid))
    .map((s) => ({
      name: s.metadata.name,
      revision: revisionOf(s.metadata),
      wanted: s.spec.replicas ?? 0,
      ready: s.status?.readyReplicas ?? 0,
      current: revisionOf(s.metadata) === revisionOf(of),
    }))
    .filter((s) => s.current || s.wanted > 0 || s.ready > 0)
    .sort((a, b) => b.revision - a.revision);
}

export interface LastEnd {
  code: number;
  outOfMemory: boolean;
  reason: string;
  at: number;
}

/** lastEnd is how a container's last run ended, if one has. */
export function lastEnd(c: ContainerStatus): LastEnd | undefined {
  const t = c.state?.terminated ?? c.lastState?.terminated;
  if (!t) return undefined;
  return { code: t.exitCode, outOfMemory: t.reason === 'OOMKilled', reason: t.reason ?? '', at: Date.parse(t.finishedAt ?? '') };
}

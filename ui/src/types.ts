// SPDX-License-Identifier: Apache-2.0
// What the page knows of the API: only the fields that it reads.

export interface Meta {
  name: string;
  namespace?: string;
  uid: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: { kind: string; name: string; uid: string; apiVersion: string; controller?: boolean }[];
}

export interface Column {
  name: string;
  type: string;
  priority: number;
}

export interface Row {
  cells: unknown[];
  meta: Meta;
}

export interface Table {
  kind: string;
  metadata?: { resourceVersion?: string; continue?: string; remainingItemCount?: number };
  columnDefinitions?: Column[] | null;
  rows?: { cells: unknown[]; object?: { metadata?: Meta } }[] | null;
}

export interface Kind {
  group: string;
  version: string;
  resource: string;
  kind: string;
  namespaced: boolean;
  verbs: string[];
  short: string[];
}

export interface Step {
  at: number;
  took: number;
  who: string;
  what: string;
  error?: string;
  handOff?: number;
  reportedBy?: string;
  watch?: { resource: string; revision: number };
  idle?: boolean;
  parts?: Step[];
}

export interface Story {
  namespace: string;
  name: string;
  uid?: string;
  phase: string;
  node?: string;
  owner?: string;
  start: string;
  readyAfter?: number;
  total: number;
  accounted: number;
  partial?: boolean;
  simulated?: boolean;
  steps: Step[] | null;
  done: boolean;
}

export interface PluginScore {
  plugin: string;
  raw: number;
  score: number;
  weight: number;
}

export interface Decision {
  attempt: number;
  nodes: number;
  fit: number;
  rejected?: { node: string; plugin: string; reason: string; short?: string; nearest?: boolean }[];
  scores?: { node: string; total: number; plugins?: PluginScore[] }[];
  groups?: { plugin?: string; reason: string; nodes: number; names?: string[] }[];
  chosen?: string;
  fixes?: string[];
  message?: string;
}

export interface Why {
  namespace: string;
  name: string;
  node?: string;
  since?: string;
  for?: number;
  tries?: number;
  next?: string;
  reason?: string;
  notReady?: string[];
  terminating?: string[];
  ended?: string;
  fake?: string;
  help?: string[];
  gone?: boolean;
  decision?: Decision;
}

export interface Answer {
  pod?: Why;
  object?: { kind: string; name: string; state: string; why?: string[]; next?: string[]; unknown?: string[] };
  pods?: { name: string; node?: string; status: string }[];
  lacks?: string;
  waits?: string;
}

export interface Session {
  context: string;
  namespace: string;
  server: string;
  readOnly: boolean;
}

export interface Pod {
  metadata: Meta;
  spec: { nodeName?: string; containers: { name: string }[]; initContainers?: { name: string }[] };
  status: {
    phase?: string;
    conditions?: { type: string; status: string; reason?: string; message?: string }[];
    containerStatuses?: ContainerStatus[];
    initContainerStatuses?: ContainerStatus[];
  };
}

export interface ContainerStatus {
  name: string;
  ready: boolean;
  restartCount: number;
  state?: State;
  lastState?: State;
}

export interface State {
  waiting?: { reason?: string; message?: string };
  running?: { startedAt?: string };
  terminated?: { exitCode: number; reason?: string; finishedAt?: string };
}

export interface List<T> {
  metadata?: { continue?: string };
  items: T[];
}

/** Owned is an object of which only the metadata was read. */
export interface Owned {
  kind: string;
  metadata: Meta;
}

export interface Template {
  metadata?: Partial<Meta>;
  spec: { containers: { name: string; image?: string }[] };
}

export interface Deployment {
  metadata: Meta;
  spec: { replicas?: number; template: Template };
}

export interface ReplicaSet {
  metadata: Meta;
  spec: { replicas?: number; template: Template };
  status?: { readyReplicas?: number };
}

export interface WholePod {
  metadata: Meta;
  spec: { volumes?: { name: string; emptyDir?: object }[] };
  status: { phase?: string };
}

export interface Selector {
  matchLabels?: Record<string, string>;
  matchExpressions?: { key: string; operator: string; values?: string[] }[];
}

export interface PodDisruptionBudget {
  metadata: Meta;
  spec: { selector?: Selector };
  status?: { disruptionsAllowed?: number };
}

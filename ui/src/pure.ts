// SPDX-License-Identifier: Apache-2.0
// What the page concludes from what it was sent. Pure: no clock, no network, no elements; test/pure.test.ts has it.
import type { Answer, Column, Decision, Meta, Pod, Row, Step, Story, Why } from './types';

/** age is a time that has passed, as kubectl shows it: two units at most. */
export function age(ms: number): string {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return `${s}s`;
  const m = Math.floor(s / 60);
  if (m < 10) return s % 60 ? `${m}m${s % 60}s` : `${m}m`;
  if (m < 180) return `${m}m`;
  const h = Math.floor(m / 60);
  if (h < 48) return h < 8 && m % 60 ? `${h}h${m % 60}m` : `${h}h`;
  const d = Math.floor(h / 24);
  return d < 730 ? `${d}d` : `${Math.floor(d / 365)}y`;
}

/** span is a duration in nanoseconds, in the unit that suits it. */
export function span(ns: number): string {
  const us = ns / 1e3;
  if (us < 100) return `${Math.round(us)} µs`;
  const ms = us / 1e3;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1e3;
  return s < 100 ? `${s.toFixed(s < 10 ? 2 : 1)} s` : age(ms);
}

/** cell is the text of a column in a row, by the column's name. */
export function cell(columns: Column[], row: Row, name: string): string {
  const i = columns.findIndex((c) => c.name === name);
  const value = i < 0 ? undefined : row.cells[i];
  return value === undefined || value === null ? '' : String(value);
}

/** workload is the name of what made a pod, as people call it: a Deployment's where a ReplicaSet has its hash. */
export function workload(meta: Meta): string {
  const owner = meta.ownerReferences?.find((o) => o.controller) ?? meta.ownerReferences?.[0];
  if (!owner) return meta.name;
  const hash = meta.labels?.['pod-template-hash'];
  if (owner.kind === 'ReplicaSet' && hash && owner.name.endsWith('-' + hash)) return owner.name.slice(0, -hash.length - 1);
  return owner.name;
}

export type Health = 'well' | 'starting' | 'ill' | 'ended' | 'leaving';

const ended = ['Completed', 'Succeeded'];
const beginning = ['ContainerCreating', 'PodInitializing', 'Pending'];

/** patience is how long a pod may take to start before it is not well. */
const patience = 30_000;

/** nodePatience is how long a pod may wait for a node. */
const nodePatience = 5_000;

/** health says how a pod fares, from its row. */
export function health(columns: Column[], row: Row, now: number): Health {
  const status = cell(columns, row, 'Status');
  const [ready, wanted] = cell(columns, row, 'Ready').split('/');
  const waits = status === 'Pending' && cell(columns, row, 'Node') === '<none>';
  const young = now - Date.parse(row.meta.creationTimestamp ?? '') < (waits ? nodePatience : patience);
  if (row.meta.deletionTimestamp) return now > Date.parse(row.meta.deletionTimestamp) + patience ? 'ill' : 'leaving';
  if (ended.includes(status)) return 'ended';
  if (status === 'Running' && ready === wanted) return 'well';
  if (status === 'Running' || beginning.includes(status) || /^Init:\d+\/\d+$/.test(status)) return young ? 'starting' : 'ill';
  return 'ill';
}

export interface Problem {
  namespace: string;
  workload: string;
  status: string;
  pods: string[];
  /** unready means that the pods run and are not ready. */
  unready: boolean;
}

/** problems groups pods that are not well by what made them and what they say, the largest group first. */
export function problems(columns: Column[], rows: Iterable<Row>, now: number): Problem[] {
  const found = new Map<string, Problem>();
  for (const row of rows) {
    if (health(columns, row, now) !== 'ill') continue;
    const namespace = row.meta.namespace ?? '';
    let status = row.meta.deletionTimestamp ? 'Terminating' : cell(columns, row, 'Status');
    if (status === 'ErrImagePull') status = 'ImagePullBackOff'; // the same, between two tries
    const name = workload(row.meta);
    const key = JSON.stringify([namespace, name, status]);
    const p = found.get(key) ?? { namespace, workload: name, status, pods: [], unready: status === 'Running' };
    p.pods.push(row.meta.name);
    found.set(key, p);
  }
  return [...found.values()].sort((a, b) => b.pods.length - a.pods.length || a.workload.localeCompare(b.workload));
}

/** isFake reports whether nothing runs on a node. */
export const isFake = (meta: Meta) => meta.labels?.['type'] === 'keelson-fake' || 'kwok.x-k8s.io/node' in (meta.annotations ?? {});

/** reasons are why something is as it is, as the server says, the most important first. */
export function reasons(answer: Answer): string[] {
  if (answer.object) return answer.object.why ?? [];
  const w = answer.pod;
  if (!w) return [answer.waits, answer.lacks].filter((s): s is string => !!s);
  const out = [...(w.terminating ?? []), ...(w.notReady ?? [])];
  if (w.ended) out.push(w.ended);
  if (w.reason && !w.node) out.push(w.reason);
  if (out.length === 0 && w.decision && !w.node) out.push(...refusals(w.decision));
  return out;
}

/** refusals are a line for each kind of reason for which nodes refused a pod. */
export function refusals(d: Decision): string[] {
  const byReason = new Map<string, string[]>();
  for (const r of d.rejected ?? []) {
    const reason = r.short || r.reason;
    byReason.set(reason, [...(byReason.get(reason) ?? []), r.node]);
  }
  const out = [...byReason].sort((a, b) => a[1].length - b[1].length).map(([reason, nodes]) => `${some(nodes)}: ${reason}`);
  return out.length || !d.message ? out : [d.message];
}

const mostNames = 3;

/** some names, and how many more there are. */
export function some(names: string[]): string {
  if (names.length <= mostNames) return names.join(', ');
  return `${names.slice(0, mostNames).join(', ')} + ${names.length - mostNames}`;
}

/** helps are what would help, the nearest first. */
export const helps = (answer: Answer): string[] =>
  answer.object?.next ?? [...(answer.pod?.help ?? []), ...(answer.pod?.node ? [] : (answer.pod?.decision?.fixes ?? []))];

/** pieces splits a text at its `commands`. */
export function pieces(text: string): { text: string; command: boolean }[] {
  return text
    .split('`')
    .map((part, i) => ({ text: part, command: i % 2 === 1 }))
    .filter((p) => p.text !== '');
}

/** conditionsSay is what a pod itself says, where the server has no answer of its own: another Kubernetes. */
export function conditionsSay(pod: Pod): string[] {
  const out: string[] = [];
  for (const c of [...(pod.status.initContainerStatuses ?? []), ...(pod.status.containerStatuses ?? [])]) {
    const waiting = c.state?.waiting;
    if (waiting?.reason) out.push(`${c.name}: ${waiting.reason}${waiting.message ? ': ' + waiting.message : ''}`);
  }
  for (const c of pod.status.conditions ?? []) {
    if (c.type === 'PodScheduled' && c.status === 'False') out.push(c.message || c.reason || c.type);
  }
  return out;
}

export interface Bar {
  at: number;
  took: number;
  lane: string;
  step: Step;
  failed: boolean;
}

export interface Arrow {
  at: number;
  from: string;
  to: string;
  took: number;
}

export interface Segment {
  from: number;
  to: number;
  left: number; // of 1
  width: number; // of 1
  folded: boolean;
}

export interface Lanes {
  lanes: string[];
  bars: Bar[];
  arrows: Arrow[];
  segments: Segment[];
}

const laneOrder = ['client', 'apiserver', 'store', 'controllers', 'scheduler', 'kubelet', 'simulator', 'runtime', 'proxy', 'dns'];

/** laneOf is the lane of a component, without the node on which it runs. */
export const laneOf = (who: string) => who.split(' ')[0] ?? who;

const foldedWidth = 0.03;

/** layOut makes lanes of a story's steps: bars, hand-offs as arrows, and a scale in which idle times are folded. */
export function layOut(story: Story): Lanes {
  const bars: Bar[] = [];
  const arrows: Arrow[] = [];
  for (const step of story.steps ?? []) {
    const lane = laneOf(step.who);
    if (step.watch) {
      for (const p of step.parts ?? []) {
        const to = laneOf(p.who);
        if (laneOrder.includes(to)) arrows.push({ at: step.at + p.took, from: lane, to, took: p.took });
      }
      continue;
    }
    bars.push({ at: step.at, took: step.took, lane, step, failed: !!step.error });
    for (const p of step.parts ?? []) {
      if (p.who === 'store') bars.push({ at: p.at, took: p.took, lane: 'store', step: p, failed: !!p.error });
    }
    const by = / by (\S+)/.exec(step.what)?.[1] ?? '';
    if (lane === 'apiserver' && by) arrows.push({ at: step.at, from: callerLane(by), to: 'apiserver', took: 0 });
  }
  const used = new Set([...bars.map((b) => b.lane), ...arrows.flatMap((a) => [a.from, a.to])]);
  const lanes = [...laneOrder.filter((l) => used.has(l)), ...[...used].filter((l) => !laneOrder.includes(l)).sort()];
  return { lanes, bars, arrows, segments: scale(bars, story.total) };
}

/** callerLane is the lane of a user. */
function callerLane(user: string): string {
  if (user.startsWith('system:node:')) return 'kubelet';
  if (user === 'system:kube-scheduler') return 'scheduler';
  if (user.endsWith(':simulate-controller')) return 'simulator';
  if (user.startsWith('system:serviceaccount:kube-system:')) return 'controllers';
  return 'client';
}

/** scale divides the time from the first to the last bar, to scale but for idle times, which are folded. */
export function scale(bars: { at: number; took: number }[], total: number): Segment[] {
  const sorted = [...bars].sort((a, b) => a.at - b.at);
  const busy: { from: number; to: number }[] = [];
  for (const b of sorted) {
    const last = busy.at(-1);
    if (last && b.at <= last.to) last.to = Math.max(last.to, b.at + b.took);
    else busy.push({ from: b.at, to: b.at + b.took });
  }
  if (busy.length === 0) return [{ from: 0, to: Math.max(1, total), left: 0, width: 1, folded: false }];
  const work = busy.reduce((sum, b) => sum + b.to - b.from, 0);
  const cuts: { from: number; to: number; folded: boolean }[] = [];
  let from = busy[0]!.from;
  busy.forEach((b, i) => {
    const next = busy[i + 1];
    if (next && next.from - b.to <= Math.max(work / 5, 1)) return; // short enough to be shown as it is
    cuts.push({ from, to: b.to, folded: false });
    if (next) {
      cuts.push({ from: b.to, to: next.from, folded: true });
      from = next.from;
    }
  });
  const folds = cuts.filter((c) => c.folded).length;
  const fold = folds ? Math.min(foldedWidth, 0.5 / folds) : 0;
  const shown = cuts.reduce((sum, c) => sum + (c.folded ? 0 : c.to - c.from), 0);
  let left = 0;
  return cuts.map((c) => {
    const width = c.folded ? fold : shown ? ((c.to - c.from) / shown) * (1 - folds * fold) : (1 - folds * fold) / (cuts.length - folds);
    const segment = { ...c, left, width };
    left += width;
    return segment;
  });
}

/** place is where a time stands on a scale, from 0 to 1. */
export function place(segments: Segment[], at: number): number {
  for (const s of segments) {
    if (at <= s.to) return s.left + s.width * (s.to > s.from ? Math.max(0, (at - s.from) / (s.to - s.from)) : 0);
  }
  return 1;
}

export interface ScoreTable {
  plugins: { name: string; weight: number }[];
  rows: { node: string; total: number; scores: (number | undefined)[]; winner: boolean; runnerUp: boolean }[];
  refused: { node: string; plugin: string; reason: string }[];
}

/** scoreTable has a row for each node with a score and a column for each plugin: what it gave, times its weight. */
export function scoreTable(d: Decision): ScoreTable {
  const plugins: ScoreTable['plugins'] = [];
  for (const s of d.scores ?? []) {
    for (const p of s.plugins ?? []) {
      if (!plugins.some((q) => q.name === p.plugin)) plugins.push({ name: p.plugin, weight: p.weight });
    }
  }
  const sorted = [...(d.scores ?? [])].sort((a, b) => Number(b.node === d.chosen) - Number(a.node === d.chosen) || b.total - a.total);
  const rows = sorted.map((s, i) => ({
    node: s.node,
    total: s.total,
    scores: plugins.map((p) => {
      const own = s.plugins?.find((q) => q.plugin === p.name);
      return own && own.score * own.weight;
    }),
    winner: s.node === d.chosen,
    runnerUp: i === 1 && !!d.chosen,
  }));
  const refused = (d.rejected ?? []).map((r) => ({ node: r.node, plugin: r.plugin, reason: r.short || r.reason }));
  return { plugins, rows, refused };
}

/** pendingWhy says in how far a Why is about a pod without a node. */
export const isPending = (w: Why) => !w.node && !w.gone;

/** withoutManagedFields takes a block of metadata out of YAML as API servers write it. */
export function withoutManagedFields(yaml: string): string {
  const out: string[] = [];
  let inside = false;
  for (const line of yaml.split('\n')) {
    if (inside && /^ {2}(?:[- ]|$)/.test(line)) continue; // list items may stand at the key's own indent
    inside = line === '  managedFields:' || line.startsWith('  managedFields: ');
    if (!inside) out.push(line);
  }
  return out.join('\n');
}

/** masked hides the values of a Secret in YAML as API servers write it. */
export function masked(yaml: string): string {
  let inside = false;
  let hidden = -1; // the indent of a value that goes on for more lines
  const out: string[] = [];
  for (const line of yaml.split('\n')) {
    const indent = line.search(/\S/);
    if (hidden >= 0 && (indent > hidden || indent < 0)) continue;
    hidden = -1;
    if (/^\S/.test(line)) inside = /^(data|stringData):/.test(line);
    const value = /^(\s+)([^\s:][^:]*|"[^"]*"):( .*)?$/.exec(line);
    const applied = line.trimStart().startsWith('kubectl.kubernetes.io/last-applied-configuration:');
    if (value && ((inside && indent > 0) || applied)) {
      out.push(`${value[1]}${applied ? 'kubectl.kubernetes.io/last-applied-configuration' : value[2]}: ••••••`);
      hidden = indent;
    } else if (applied) {
      out.push(line.slice(0, indent) + 'kubectl.kubernetes.io/last-applied-configuration: ••••••');
      hidden = indent;
    } else {
      out.push(line);
    }
  }
  return out.join('\n');
}

export interface DiffLine {
  sign: ' ' | '+' | '-';
  text: string;
}

const mostCells = 4_000_000;

/** diff compares two texts line by line. */
export function diff(before: string, after: string): DiffLine[] {
  const a = before.split('\n');
  const b = after.split('\n');
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const x = a.slice(start, a.length - end);
  const y = b.slice(start, b.length - end);
  const same = (lines: string[]): DiffLine[] => lines.map((text) => ({ sign: ' ', text }));
  const middle: DiffLine[] = [];
  if (x.length * y.length > mostCells) {
    middle.push(...x.map((text): DiffLine => ({ sign: '-', text })), ...y.map((text): DiffLine => ({ sign: '+', text })));
  } else {
    const width = y.length + 1;
    const longest = new Uint32Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i--) {
      for (let j = y.length - 1; j >= 0; j--) {
        longest[i * width + j] =
          x[i] === y[j] ? longest[(i + 1) * width + j + 1]! + 1 : Math.max(longest[(i + 1) * width + j]!, longest[i * width + j + 1]!);
      }
    }
    let i = 0;
    let j = 0;
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) {
        middle.push({ sign: ' ', text: x[i]! });
        i++;
        j++;
      } else if (j === y.length || (i < x.length && longest[(i + 1) * width + j]! >= longest[i * width + j + 1]!)) {
        middle.push({ sign: '-', text: x[i++]! });
      } else {
        middle.push({ sign: '+', text: y[j++]! });
      }
    }
  }
  return [...same(a.slice(0, start)), ...middle, ...same(a.slice(a.length - end))];
}

/** matcher finds lines: by a word, or by a regular expression between slashes. An expression that is none finds nothing. */
export function matcher(filter: string): (line: string) => boolean {
  const expression = /^\/(.+)\/$/.exec(filter);
  if (expression) {
    try {
      const re = new RegExp(expression[1]!, 'i');
      return (line) => re.test(line);
    } catch {
      return () => false;
    }
  }
  const word = filter.toLowerCase();
  return (line) => line.toLowerCase().includes(word);
}

/** sorted rows: by a column, numbers as numbers. */
export function sortRows(rows: Row[], columns: Column[], by: string, down: boolean): Row[] {
  const i = columns.findIndex((c) => c.name === by);
  const of = (r: Row): string | number => {
    if (by === 'Age') return -Date.parse(r.meta.creationTimestamp ?? '');
    const v = r.cells[i];
    return typeof v === 'number' ? v : String(v ?? '');
  };
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = of(a);
    const y = of(b);
    const order = typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y), 'en', { numeric: true });
    return sign * order || key(a).localeCompare(key(b));
  });
}

const key = (r: Row) => `${r.meta.namespace ?? ''}/${r.meta.name}`;

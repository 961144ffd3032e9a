// SPDX-License-Identifier: Apache-2.0
// Questions of the kind "what if", and their answers as rows. Pure; test/suppose.test.ts has it.
import type { Decision } from './types';
import { refusals } from './pure';

export interface Supposition {
  node: string;
  /** how the node leaves: drained, or gone at once. */
  how: 'drain' | 'remove';
  added: number;
  resources: string;
}

/** question is what the server is asked, or undefined where nothing is supposed. */
export function question(s: Supposition): { drain?: string[]; remove?: string[]; addNodes?: string } | undefined {
  const out = {
    ...(s.node && { [s.how]: [s.node] }),
    ...(s.added > 0 && { addNodes: [s.added, s.resources.replace(/\s/g, '')].filter(Boolean).join(',') }),
  };
  return Object.keys(out).length ? out : undefined;
}

interface Named {
  namespace: string;
  name: string;
  why: string;
}

export interface Supposed {
  nodes: number;
  outcomes: (Named & { node?: string; reason?: string; noFit?: string; decision?: Decision })[] | null;
  lost?: Named[];
  notes?: string[];
}

export interface Line extends Named {
  node: string;
  reasons: string[];
  fate: 'placed' | 'pending' | 'lost';
}

/** fates are a line for each pod, those first that get no node. */
export function fates(a: Supposed): Line[] {
  const lost = (a.lost ?? []).map((p): Line => ({ ...p, node: '', reasons: [], fate: 'lost' }));
  const tried = (a.outcomes ?? []).map((o): Line => {
    const reasons = o.node ? [] : o.decision ? refusals(o.decision) : [o.reason ?? ''];
    return { namespace: o.namespace, name: o.name, why: o.why, node: o.node ?? '', reasons, fate: o.node ? 'placed' : 'pending' };
  });
  return [...lost, ...tried.filter((t) => !t.node), ...tried.filter((t) => t.node)];
}

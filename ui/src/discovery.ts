// SPDX-License-Identifier: Apache-2.0
// Which kinds a server has.
import { json } from './api';
import type { Kind } from './types';

interface Groups {
  items?: {
    metadata?: { name?: string };
    versions?: {
      version: string;
      resources?: {
        resource: string;
        responseKind?: { kind?: string };
        scope?: string;
        verbs?: string[];
        shortNames?: string[];
      }[];
    }[];
  }[];
}

const aggregated = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList';

/** kindsOf are the kinds of both roots, each in its group's preferred version. */
export async function kindsOf(): Promise<Kind[]> {
  const roots = await Promise.all(['/api', '/apis'].map((p) => json<Groups>(p, { accept: aggregated }).catch((): Groups => ({}))));
  const out = new Map<string, Kind>();
  for (const g of roots.flatMap((r) => r.items ?? [])) {
    for (const v of g.versions ?? []) {
      for (const r of v.resources ?? []) {
        const group = g.metadata?.name ?? '';
        const id = `${group}/${r.resource}`;
        if (out.has(id)) continue;
        out.set(id, {
          group,
          version: v.version,
          resource: r.resource,
          kind: r.responseKind?.kind ?? r.resource,
          namespaced: r.scope === 'Namespaced',
          verbs: r.verbs ?? [],
          short: r.shortNames ?? [],
        });
      }
    }
  }
  return [...out.values()];
}

// SPDX-License-Identifier: Apache-2.0
// One field that leads anywhere: kinds by their names, and objects of the usual kinds by theirs.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { json } from './api';
import { useAround } from './hooks';
import { listAt, objectAt, overview, pathOf } from './route';
import type { Ref } from './route';
import type { Meta } from './types';
import { words } from './words';

interface Goal {
  text: string;
  about: string;
  href: string;
}

const most = 12;
const searched = ['pods', 'deployments', 'statefulsets', 'daemonsets', 'services', 'nodes', 'namespaces', 'configmaps', 'jobs'];
const mostNames = 500; // of one kind

export function Palette({ close }: { close: () => void }) {
  const { kinds } = useAround();
  const [typed, setTyped] = useState('');
  const [at, setAt] = useState(0);
  const [named, setNamed] = useState<Goal[]>([]);
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.focus(), []); // at once: what is typed next belongs to it
  useEffect(() => {
    // names are asked for when the field is opened, and forgotten with it
    const abort = new AbortController();
    for (const kind of kinds.filter((k) => searched.includes(k.resource) && (k.group === '' || k.group === 'apps' || k.group === 'batch'))) {
      json<{ items?: { metadata: Meta }[] }>(`${pathOf(kind, '')}?limit=${mostNames}`, {
        accept: 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io',
        signal: abort.signal,
      }).then(
        (list) => {
          const found = (list.items ?? []).map((o) => goalOf(kind, kind.kind, o.metadata));
          setNamed((all) => [...all, ...found]);
        },
        () => undefined, // what may not be listed is not found
      );
    }
    return () => abort.abort();
  }, []);
  const goals = useMemo(() => {
    const word = typed.trim().toLowerCase();
    const kindGoals = kinds
      .filter((k) => k.verbs.includes('list'))
      .map((k) => ({ kind: k, names: [k.resource, k.kind.toLowerCase(), ...k.short] }))
      .filter((k) => !word || k.names.some((n) => n.includes(word)))
      .sort((a, b) => Number(b.names.includes(word)) - Number(a.names.includes(word)) || Number(a.kind.group !== '') - Number(b.kind.group !== ''))
      .map((k): Goal => ({ text: k.kind.kind, about: k.kind.group, href: listAt(k.kind) }));
    const exact = kindGoals.length > 0 && kinds.some((k) => k.resource === word || k.short.includes(word));
    const objects = word ? named.filter((n) => n.text.toLowerCase().includes(word)) : [];
    const first: Goal[] = !word || words.nav.overview.toLowerCase().startsWith(word) ? [{ text: words.nav.overview, about: '', href: overview() }] : [];
    return [...first, ...(exact ? [...kindGoals, ...objects] : [...objects, ...kindGoals])].slice(0, most);
  }, [typed, named, kinds]);
  const go = (g: Goal | undefined) => {
    if (!g) return;
    location.hash = g.href;
    close();
  };
  return (
    <div
      class="veil"
      onClick={(e) => {
        if (e.target === e.currentTarget) close();
      }}
    >
      <div class="palette" role="dialog" aria-label={words.jump}>
        <input
          ref={field}
          value={typed}
          placeholder={words.jumpHint}
          aria-label={words.jump}
          onInput={(e) => {
            setTyped(e.currentTarget.value);
            setAt(0);
          }}
          onKeyDown={(e) => {
            if (e.key === 'Escape') close();
            else if (e.key === 'ArrowDown') setAt(Math.min(goals.length - 1, at + 1));
            else if (e.key === 'ArrowUp') setAt(Math.max(0, at - 1));
            else if (e.key === 'Enter') go(goals[at]);
            else return;
            e.preventDefault();
          }}
        />
        <ul>
          {goals.map((g, i) => (
            <li key={g.href}>
              <a class={i === at ? 'chosen' : ''} href={g.href} onClick={close}>
                {g.text} <span class="quiet">{g.about}</span>
              </a>
            </li>
          ))}
          {goals.length === 0 && <li class="quiet">{words.jumpNone}</li>}
        </ul>
      </div>
    </div>
  );
}

const goalOf = (of: Ref, kind: string, m: Meta): Goal => ({
  text: m.name,
  about: m.namespace ? `${kind} · ${m.namespace}` : kind,
  href: objectAt(of, m.namespace ?? '', m.name),
});

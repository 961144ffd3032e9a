// SPDX-License-Identifier: Apache-2.0
// An object as YAML; changed only after the server has checked the change and shown it.
import { useEffect, useState } from 'preact/hooks';
import { Failure, text } from './api';
import { useAround } from './hooks';
import { diff, masked, withoutManagedFields } from './pure';
import type { DiffLine } from './pure';
import { useMay } from './rights';
import { pathOf } from './route';
import type { Ref } from './route';
import { words } from './words';

const w = words.yaml;
const yaml = 'application/yaml';

interface State {
  base: string; // as the server had it when the edit began
  draft?: string; // while it is edited
  changes?: DiffLine[]; // by this edit
  theirs?: DiffLine[]; // by others since then
  note?: string;
  failure?: string;
}

export const changed = (lines: DiffLine[]) => lines.some((l) => l.sign !== ' ');

export function Yaml({ of, namespace, name }: { of: Ref; namespace: string; name: string }) {
  const path = pathOf(of, namespace, name);
  const [state, set] = useState<State>({ base: '' });
  const { session } = useAround();
  const may = useMay([{ verb: 'update', of, namespace, name }]);
  const secret = of.resource === 'secrets' && of.group === '';
  const [open, setOpen] = useState(!secret);
  const load = () => text(path, { accept: yaml }).then(withoutManagedFields);
  const fail = (e: unknown) => set((s) => ({ ...s, failure: e instanceof Error ? e.message : String(e) }));
  useEffect(() => {
    load().then((base) => set({ base }), fail);
  }, [path]);
  const put = (dryRun: boolean) =>
    text(`${path}${dryRun ? '?dryRun=All' : ''}`, { method: 'PUT', type: yaml, accept: yaml, body: state.draft ?? '' }).then(withoutManagedFields);
  const conflicted = async (e: unknown) => {
    if (!(e instanceof Failure) || e.code !== 409) return fail(e);
    const now = await load().catch(() => '');
    set((s) => ({ base: s.base, draft: s.draft ?? '', theirs: diff(s.base, now), failure: w.conflict }));
  };
  const check = () =>
    put(true).then((after) => set((s) => ({ base: s.base, draft: s.draft ?? '', changes: diff(s.base, after) })), conflicted);
  const apply = () => put(false).then((base) => set({ base, note: w.applied }), conflicted);
  /** reload keeps the text and lets it go on from the version that the server has now. */
  const reload = () =>
    load().then((base) => {
      const version = /^ {2}resourceVersion: .*$/m.exec(base)?.[0] ?? '';
      set((s) => ({ base, draft: (s.draft ?? '').replace(/^ {2}resourceVersion: .*$/m, version) }));
    }, fail);
  const { draft } = state;
  return (
    <div class="yaml">
      <div class="controls">
        {secret && draft === undefined && <button onClick={() => setOpen(!open)}>{open ? w.hide : w.show}</button>}
        {draft === undefined && may && (
          <button
            onClick={() => {
              setOpen(true);
              set({ base: state.base, draft: state.base });
            }}
          >
            {w.edit}
          </button>
        )}
        {draft !== undefined && (
          <>
            <button class="main" onClick={() => void check()}>
              {w.check}
            </button>
            {state.changes && changed(state.changes) && (
              <button class="main" onClick={() => void apply()}>
                {w.apply}
              </button>
            )}
            {state.theirs && <button onClick={() => void reload()}>{w.reload}</button>}
            <button onClick={() => set({ base: state.base })}>{w.cancel}</button>
          </>
        )}
        {may === false && !session.readOnly && <span class="quiet">{`${w.mayNot} ${words.rule('update', of.group, of.resource)}`}</span>}
      </div>
      {state.failure && (
        <div class="note bad" role="alert">
          {state.theirs ? '' : draft !== undefined && <p>{w.refused}</p>}
          <p>{state.failure}</p>
        </div>
      )}
      {state.note && <div class="note good">{state.note}</div>}
      {state.theirs && <Diff lines={state.theirs} />}
      {state.changes && (
        <>
          <p class="lead">{changed(state.changes) ? w.checked : w.same}</p>
          {changed(state.changes) && <Diff lines={state.changes} />}
        </>
      )}
      {draft === undefined ? (
        <pre class="text" tabIndex={0}>
          {open ? state.base : masked(state.base)}
        </pre>
      ) : (
        <textarea
          class="text"
          spellcheck={false}
          aria-label={words.object.yaml}
          value={draft}
          onInput={(e) => {
            const value = e.currentTarget.value;
            set((s) => ({ base: s.base, draft: value }));
          }}
        />
      )}
    </div>
  );
}

const around = 3;

/** Diff shows the lines that change, with some around them. */
export function Diff({ lines }: { lines: DiffLine[] }) {
  const near = lines.map((_, i) => lines.slice(Math.max(0, i - around), i + around + 1).some((l) => l.sign !== ' '));
  return (
    <pre class="diff">
      {lines.map((l, i) => {
        if (!near[i]) return near[i - 1] ? <div key={i} class="gap">{'⋯'}</div> : null;
        return (
          <div key={i} class={l.sign === '+' ? 'added' : l.sign === '-' ? 'removed' : ''}>
            {`${l.sign} ${l.text}`}
          </div>
        );
      })}
    </pre>
  );
}

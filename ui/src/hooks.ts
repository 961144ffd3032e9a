// SPDX-License-Identifier: Apache-2.0
import { createContext } from 'preact';
import { useContext, useEffect, useReducer, useRef, useState } from 'preact/hooks';
import { Failure, json, streams } from './api';
import { Feed, pageSize } from './feed';
import type { Call } from './api';
import type { Kind, Session } from './types';

/** Around is what every view knows. */
export interface Around {
  session: Session;
  kinds: Kind[];
}

export const AroundContext = createContext<Around>({
  session: { context: '', namespace: '', server: '', readOnly: true },
  kinds: [],
});

export const useAround = () => useContext(AroundContext);

export function useRedraw(): () => void {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  return redraw as () => void;
}

/** useFeed keeps a table live while the view is on screen; path '' is none. */
export function useFeed(path: string, query = '', most = pageSize): Feed | undefined {
  const redraw = useRedraw();
  const [feed, set] = useState<Feed>();
  useEffect(() => {
    if (!path) {
      set(undefined);
      return undefined;
    }
    const f = new Feed(path, query, redraw, most);
    set(f);
    f.start();
    return () => f.end();
  }, [path, query, most]);
  return feed;
}

export interface Asked<T> {
  value?: T;
  failure?: Failure;
}

/** useJson asks once for each path and turn; path '' is no question. What came stays until something else comes. */
export function useJson<T>(path: string, turn: unknown = 0, call: Call = {}): Asked<T> {
  const [asked, set] = useState<Asked<T> & { path: string }>({ path: '' });
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    json<T>(path, { ...call, signal: abort.signal }).then(
      (value) => set({ value, path }),
      (e: unknown) => {
        if (!abort.signal.aborted) set({ failure: e instanceof Failure ? e : new Failure(0, String(e)), path });
      },
    );
    return () => abort.abort();
  }, [path, turn]);
  return asked.path === path ? asked : {};
}

/** useNow is the time, at most so old. */
export function useNow(every = 1_000): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

export function useLost(): boolean {
  const redraw = useRedraw();
  useEffect(() => {
    const stop = streams.onChange(redraw);
    return () => void stop();
  }, []);
  return streams.lost;
}

/** useKey calls f for a key that is not typed into a field. */
export function useKey(f: (e: KeyboardEvent) => void) {
  const latest = useRef(f);
  latest.current = f; // at once, so that keys typed quickly find what the last one did
  useEffect(() => {
    const typed = (e: KeyboardEvent) => {
      const target = e.target as HTMLElement;
      if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      latest.current(e);
    };
    addEventListener('keydown', typed);
    return () => removeEventListener('keydown', typed);
  }, []);
}

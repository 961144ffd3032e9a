// SPDX-License-Identifier: Apache-2.0
// A container's log, as it is written.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { streams } from './api';
import { Rows } from './parts';
import { matcher } from './pure';
import { pathOf, pods } from './route';
import type { Pod } from './types';
import { words } from './words';

const w = words.logs;
const mostLines = 20_000;
const lineHeight = 19;
const mostChars = 2_000; // of a line, on screen

export function Logs({ pod }: { pod: Pod }) {
  const names = [...(pod.spec.initContainers ?? []), ...pod.spec.containers].map((c) => c.name);
  const [container, setContainer] = useState(pod.spec.containers[0]?.name ?? '');
  const [previous, setPrevious] = useState(false);
  const [since, setSince] = useState('');
  const [follow, setFollow] = useState(true);
  const [filter, setFilter] = useState('');
  const [atEnd, setAtEnd] = useState(true);
  const log = useLog(pod, container, previous, since, follow);
  const shown = useMemo(() => {
    if (!filter) return log.lines;
    const matches = matcher(filter);
    return log.lines.filter(matches);
  }, [log.lines, log.turn, filter]);
  const download = () => {
    const url = URL.createObjectURL(new Blob([shown.join('\n') + '\n'], { type: 'text/plain' }));
    const a = document.createElement('a');
    a.href = url;
    a.download = `${pod.metadata.name}-${container}.log`;
    a.click();
    URL.revokeObjectURL(url);
  };
  return (
    <div class="logs">
      <div class="controls">
        {names.length > 1 && (
          <label>
            {w.container}{' '}
            <select value={container} onChange={(e) => setContainer(e.currentTarget.value)}>
              {names.map((n) => (
                <option key={n}>{n}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          {w.since}{' '}
          <select value={since} onChange={(e) => setSince(e.currentTarget.value)}>
            <option value="">{w.sinceAll}</option>
            <option value="60">1m</option>
            <option value="600">10m</option>
            <option value="3600">1h</option>
            <option value="86400">24h</option>
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={previous} onChange={(e) => setPrevious(e.currentTarget.checked)} /> {w.previous}
        </label>
        <label class="check">
          <input type="checkbox" checked={follow} disabled={previous} onChange={(e) => setFollow(e.currentTarget.checked)} /> {w.follow}
        </label>
        <input type="search" class="grow" placeholder={w.filter} aria-label={w.filter} value={filter} onInput={(e) => setFilter(e.currentTarget.value)} />
        <span class="quiet">{w.lines(shown.length, log.lines.length)}</span>
        <button onClick={download}>{w.download}</button>
      </div>
      {log.dropped > 0 && <p class="quiet">{w.dropped(log.dropped)}</p>}
      <Rows
        count={shown.length}
        height={lineHeight}
        label={words.object.logs}
        stick={follow && atEnd}
        onScrolled={setAtEnd}
        row={(i) => (
          <div class="line" key={i}>
            {shown[i]!.slice(0, mostChars) || ' '}
          </div>
        )}
      />
      {shown.length === 0 && <p class="quiet none">{log.failure || (log.lines.length ? w.noneFound : w.none)}</p>}
      {shown.length > 0 && log.ended && <p class="quiet">{log.failure || w.ended}</p>}
      {!atEnd && follow && (
        <button class="newest" onClick={() => setAtEnd(true)}>
          {w.newest}
        </button>
      )}
    </div>
  );
}

interface Log {
  lines: string[];
  dropped: number;
  turn: number;
  ended: boolean;
  failure: string;
}

/** useLog streams a log and keeps its newest lines. */
function useLog(pod: Pod, container: string, previous: boolean, since: string, follow: boolean): Log {
  const log = useRef<Log>({ lines: [], dropped: 0, turn: 0, ended: false, failure: '' });
  const [, draw] = useState(0);
  const { namespace = '', name, uid } = pod.metadata;
  useEffect(() => {
    const own: Log = { lines: [], dropped: 0, turn: 0, ended: false, failure: '' };
    log.current = own;
    draw((n) => n + 1);
    let frame = 0;
    let ended = false;
    const paint = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        own.turn++;
        draw((n) => n + 1);
      });
    };
    let stop: () => void = () => undefined;
    let retry: ReturnType<typeof setTimeout> | undefined;
    const open = (after: string) => {
      const query = new URLSearchParams({ container });
      if (follow && !previous) query.set('follow', 'true');
      if (previous) query.set('previous', 'true');
      if (after) query.set('sinceTime', after);
      else if (since) query.set('sinceSeconds', since);
      stop = streams.open(`${pathOf(pods, namespace, name)}/log?${query}`, 'text/plain,*/*', {
        line: (line) => {
          own.lines.push(line);
          if (own.lines.length > mostLines) own.dropped += own.lines.splice(0, mostLines / 10).length;
          paint();
        },
        end: (failure, _code, lost) => {
          if (ended) return;
          if (lost) {
            const from = new Date().toISOString().replace(/\.\d+/, '');
            retry = setTimeout(() => open(from), 2_000);
            return;
          }
          own.ended = true;
          own.failure = failure;
          paint();
        },
      });
    };
    if (container) open('');
    return () => {
      ended = true;
      clearTimeout(retry);
      stop();
      cancelAnimationFrame(frame);
    };
  }, [uid, container, previous, since, follow]);
  return log.current;
}

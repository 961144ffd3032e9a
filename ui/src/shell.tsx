// SPDX-License-Identifier: Apache-2.0
// A shell in a container.
import { useEffect, useRef, useState } from 'preact/hooks';
import { key } from './api';
import { execPath, protocols, read, sized, typed } from './channels';
import type { End } from './channels';
import { pathOf, pods } from './route';
import type { Pod } from './types';
import { words } from './words';

const w = words.shell;

/** loaded is the terminal's program, fetched when the first one is opened. */
let loaded: Promise<typeof import('./terminal')> | undefined;

function load() {
  if (!loaded) {
    const link = document.createElement('link');
    link.rel = 'stylesheet';
    link.href = '/terminal.css';
    const styled = new Promise<void>((done, failed) => {
      link.onload = () => done();
      link.onerror = () => failed(new Error(w.unloaded));
    });
    document.head.append(link);
    loaded = Promise.all([import('./terminal.js'), styled]).then(([program]) => program);
    loaded.catch(() => {
      loaded = undefined;
    });
  }
  return loaded;
}

export function Shell({ pod }: { pod: Pod }) {
  const names = pod.spec.containers.map((c) => c.name);
  const [container, choose] = useState(names[0] ?? '');
  const [turn, again] = useState(0);
  const [end, setEnd] = useState<End>();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const el = box.current;
    if (!el) return undefined;
    setEnd(undefined);
    let left = false;
    let stop = () => undefined as void;
    load().then(
      (program) => {
        if (!left) stop = connect(program, el, pod, container, setEnd);
      },
      (e: unknown) => setEnd({ message: e instanceof Error ? e.message : String(e) }),
    );
    return () => {
      left = true;
      stop();
    };
  }, [pod.metadata.uid, container, turn]);
  return (
    <div class="shell">
      <div class="controls">
        <label>
          {words.logs.container}{' '}
          <select value={container} onChange={(e) => choose(e.currentTarget.value)}>
            {names.map((n) => (
              <option key={n}>{n}</option>
            ))}
          </select>
        </label>
        <span class="quiet" role="status">
          {end && (end.code === undefined ? end.message || w.lost : words.why.exit(end.code, ''))}
        </span>
        {end && <button onClick={() => again(turn + 1)}>{w.again}</button>}
      </div>
      <div class="screen" ref={box} />
    </div>
  );
}

/** connect shows a shell in an element; the function that it returns ends it. */
function connect(program: typeof import('./terminal'), el: HTMLElement, pod: Pod, container: string, ended: (e: End) => void): () => void {
  const path = execPath(pathOf(pods, pod.metadata.namespace ?? '', pod.metadata.name), container, ['sh']);
  const socket = new WebSocket(`ws://${location.host}${path}`, [...protocols, `keelson.key.${key()}`]);
  socket.binaryType = 'arraybuffer';
  let last: End | undefined;
  let left = false;
  const send = (m: Uint8Array<ArrayBuffer>) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(m);
  };
  const screen = program.open(
    el,
    (text) => send(typed(text)),
    (columns, rows) => send(sized(columns, rows)),
  );
  socket.onopen = () => {
    const { columns, rows } = screen.size();
    send(sized(columns, rows));
    screen.focus();
  };
  socket.onmessage = (e) => {
    const got = read(e.data as ArrayBuffer);
    if (got.output) screen.write(got.output);
    if (got.end) last = got.end;
  };
  socket.onclose = () => {
    if (!left) ended(last ?? { message: w.lost });
  };
  return () => {
    left = true;
    socket.close();
    screen.end();
  };
}

// SPDX-License-Identifier: Apache-2.0
// The door to the dashboard's listener: requests with the key of this tab, and one socket for all that goes on.

const keyName = 'keelson-key';

export const key = (): string => sessionStorage.getItem(keyName) ?? '';

/** Failure is an answer that is an error, or none at all (code 0). */
export class Failure extends Error {
  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

type Listener = () => void;
const leaving = new Set<Listener>();

/** onSignedOut calls f when the key is not valid any more. */
export function onSignedOut(f: Listener): Listener {
  leaving.add(f);
  return () => leaving.delete(f);
}

function signedOut() {
  sessionStorage.removeItem(keyName);
  for (const f of leaving) f();
}

/** enter exchanges a link's code for a key. */
export async function enter(code: string): Promise<void> {
  const resp = await fetch('/dashboard/v1/enter', { method: 'POST', body: JSON.stringify({ code }) });
  const body = (await resp.json()) as { key?: string; message?: string };
  if (!body.key) throw new Failure(resp.status, body.message ?? '');
  sessionStorage.setItem(keyName, body.key);
}

export interface Call {
  method?: string;
  accept?: string;
  type?: string;
  body?: string;
  signal?: AbortSignal;
}

/** text asks for a path and returns the answer's text. */
export async function text(path: string, call: Call = {}): Promise<string> {
  const headers: Record<string, string> = { 'Keelson-Key': key(), Accept: call.accept ?? 'application/json' };
  if (call.type) headers['Content-Type'] = call.type;
  const init: RequestInit = { method: call.method ?? 'GET', headers, redirect: 'error' };
  if (call.body !== undefined) init.body = call.body;
  if (call.signal) init.signal = call.signal;
  let resp: Response;
  let body: string;
  try {
    resp = await fetch(path, init);
    body = await resp.text();
  } catch (e) {
    throw new Failure(0, e instanceof Error ? e.message : String(e));
  }
  if (resp.ok) return body;
  if (resp.status === 401 && body.includes('this tab has no valid key')) signedOut();
  throw new Failure(resp.status, messageOf(body) || `${resp.status} ${resp.statusText}`);
}

export const json = async <T>(path: string, call: Call = {}): Promise<T> => JSON.parse(await text(path, call)) as T;

/** messageOf is what a Status says, or the text itself. */
function messageOf(body: string): string {
  try {
    return (JSON.parse(body) as { message?: string }).message ?? '';
  } catch {
    return body.slice(0, 500);
  }
}

export interface Handlers {
  open?: () => void;
  line: (line: string) => void;
  /** code is the answer's, 0 without one; lost means that the connection ended, not the answer. */
  end: (reason: string, code: number, lost: boolean) => void;
}

interface Stream extends Handlers {
  get: string;
  accept: string;
  code: number;
  part: string;
}

const slowest = 10_000;

/** Streams has all streams of the page on one socket, which is open while there is one. */
class Streams {
  private socket: WebSocket | undefined;
  private readonly streams = new Map<number, Stream>();
  private readonly watching = new Set<Listener>();
  private last = 0;
  private wait = 250;
  private retry: ReturnType<typeof setTimeout> | undefined;
  lost = false;

  /** open begins a stream; the function that it returns ends it. */
  open(get: string, accept: string, handlers: Handlers): Listener {
    const id = ++this.last;
    this.streams.set(id, { ...handlers, get, accept, code: 0, part: '' });
    if (this.socket?.readyState === WebSocket.OPEN) this.ask(id);
    else this.connect();
    return () => {
      if (!this.streams.delete(id)) return;
      if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ id, stop: true }));
      if (this.streams.size === 0) this.leave();
    };
  }

  onChange(f: Listener): Listener {
    this.watching.add(f);
    return () => this.watching.delete(f);
  }

  private set(lost: boolean) {
    if (this.lost === lost) return;
    this.lost = lost;
    for (const f of this.watching) f();
  }

  private ask(id: number) {
    const s = this.streams.get(id);
    if (s) this.socket?.send(JSON.stringify({ id, get: s.get, accept: s.accept }));
  }

  /** leave closes the socket when no stream has been opened for a moment. */
  private leave() {
    setTimeout(() => {
      if (this.streams.size === 0) this.socket?.close();
    }, 2_000);
  }

  private connect() {
    if (this.retry || (this.socket && this.socket.readyState !== WebSocket.CLOSED)) return;
    const socket = new WebSocket(`ws://${location.host}/dashboard/v1/streams`, ['keelson.streams.v1', `keelson.key.${key()}`]);
    this.socket = socket;
    socket.onopen = () => {
      this.wait = 250;
      this.set(false);
      for (const id of this.streams.keys()) this.ask(id);
    };
    socket.onmessage = (e) => this.take(String(e.data));
    socket.onclose = () => {
      this.socket = undefined;
      if (this.streams.size === 0) return;
      this.set(true);
      const open = [...this.streams];
      this.streams.clear();
      this.retry = setTimeout(() => {
        this.retry = undefined;
        if (this.streams.size > 0) this.connect();
        // a closed socket does not say whether the key is the reason
        text('/dashboard/v1/session').catch(() => undefined);
      }, this.wait);
      this.wait = Math.min(slowest, this.wait * 2);
      for (const [, s] of open) s.end('', s.code, true);
    };
  }

  private take(message: string) {
    const gap = message.indexOf(' ');
    const id = Number(message.slice(0, gap));
    const rest = message.slice(gap + 2);
    const s = this.streams.get(id);
    if (!s) return;
    switch (message[gap + 1]) {
      case 'o':
        s.code = Number(rest);
        if (s.code === 200) s.open?.();
        break;
      case 'p':
        s.part += rest;
        break;
      case 'l': {
        const line = s.part + rest;
        s.part = '';
        s.line(line);
        break;
      }
      case 'e':
        this.streams.delete(id);
        s.end(rest, s.code, false);
        if (this.streams.size === 0) this.leave();
    }
  }
}

export const streams = new Streams();

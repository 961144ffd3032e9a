// SPDX-License-Identifier: Apache-2.0
// Small parts of several views.
import { useEffect, useRef, useState } from 'preact/hooks';
import type { ComponentChildren, JSX } from 'preact';
import type { Failure } from './api';
import { pieces } from './pure';
import type { Ref } from './route';
import { words } from './words';

/** Said is a sentence of the server, whose commands can be copied. */
export function Said({ text }: { text: string }) {
  return (
    <>
      {pieces(text).map((p) => (p.command ? <Command text={p.text} /> : p.text))}
    </>
  );
}

export function Command({ text }: { text: string }) {
  const [copied, set] = useState(false);
  const copy = () =>
    navigator.clipboard.writeText(text).then(
      () => {
        set(true);
        setTimeout(() => set(false), 1_500);
      },
      () => undefined,
    );
  return (
    <button class="command" onClick={copy} title={words.copy}>
      <code>{text}</code>
      <span class="hint" aria-live="polite">
        {copied ? words.copied : words.copy}
      </span>
    </button>
  );
}

/** Denied shows why something cannot be shown. */
export function Refused({ failure, verb, what, namespace }: { failure: Failure; verb?: string; what?: Ref; namespace?: string }) {
  if (failure.code === 403 && what) {
    const kind = what.resource;
    return (
      <div class="note bad" role="alert">
        <p>{words.denied(verb ?? 'list', kind, namespace ?? '')}</p>
        <pre>{words.rule(verb ?? 'list', what.group, kind)}</pre>
        <p class="quiet">{failure.message}</p>
      </div>
    );
  }
  return (
    <div class="note bad" role="alert">
      <p>{failure.message}</p>
    </div>
  );
}

export const Note = ({ kind = '', children }: { kind?: string; children: ComponentChildren }) => (
  <div class={`note ${kind}`}>{children}</div>
);

const ahead = 12;

/** Rows draws of many rows of one height only those that are in sight. */
export function Rows(props: {
  count: number;
  height: number;
  row: (i: number) => JSX.Element;
  label: string;
  atEnd?: () => void;
  stick?: boolean;
  show?: number;
  onScrolled?: (atEnd: boolean) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [seen, set] = useState({ top: 0, height: 600 });
  const { count, height } = props;
  useEffect(() => {
    const el = box.current;
    if (!el) return undefined;
    const size = new ResizeObserver(() => set({ top: el.scrollTop, height: el.clientHeight }));
    size.observe(el);
    return () => size.disconnect();
  }, []);
  useEffect(() => {
    if (props.stick && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [count, props.stick]);
  useEffect(() => {
    const el = box.current;
    if (props.show === undefined || props.show < 0 || !el) return;
    const top = props.show * height;
    if (top < el.scrollTop) el.scrollTop = top;
    else if (top + height > el.scrollTop + el.clientHeight) el.scrollTop = top + height - el.clientHeight;
  }, [props.show]);
  const scrolled = () => {
    const el = box.current;
    if (!el) return;
    set({ top: el.scrollTop, height: el.clientHeight });
    const atEnd = el.scrollTop + el.clientHeight >= el.scrollHeight - height;
    props.onScrolled?.(atEnd);
    if (atEnd) props.atEnd?.();
  };
  const first = Math.max(0, Math.floor(seen.top / height) - ahead);
  const last = Math.min(count, Math.ceil((seen.top + seen.height) / height) + ahead);
  const out: JSX.Element[] = [];
  for (let i = first; i < last; i++) out.push(props.row(i));
  return (
    <div class="rows" ref={box} onScroll={scrolled} tabIndex={0} role="region" aria-label={props.label}>
      <div class="sheet" style={{ height: `${count * height}px` }}>
        <div style={{ transform: `translateY(${first * height}px)` }}>{out}</div>
      </div>
    </div>
  );
}

// SPDX-License-Identifier: Apache-2.0
// A question that an action asks before it is done.
import { useEffect, useRef, useState } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import { words } from './words';

/** Dialog asks; act does it and closes the dialog, unless it fails or returns false. */
export function Dialog(props: {
  title: string;
  confirm: string;
  danger?: boolean;
  ready?: boolean;
  act: () => Promise<unknown>;
  close: () => void;
  children?: ComponentChildren;
}) {
  const box = useRef<HTMLDialogElement>(null);
  const [running, run] = useState(false);
  const [failure, fail] = useState('');
  useEffect(() => box.current?.showModal(), []);
  const confirm = () => {
    run(true);
    fail('');
    props.act().then(
      (keep) => {
        run(false);
        if (keep !== false) props.close();
      },
      (e: unknown) => {
        run(false);
        fail(e instanceof Error ? e.message : String(e));
      },
    );
  };
  return (
    <dialog ref={box} class="ask" aria-label={props.title} onClose={props.close}>
      <h2>{props.title}</h2>
      <div class="matter">{props.children}</div>
      {failure && (
        <div class="note bad" role="alert">
          {failure}
        </div>
      )}
      <div class="controls">
        <button class={props.danger ? 'main danger' : 'main'} disabled={running || props.ready === false} onClick={confirm}>
          {props.confirm}
        </button>
        <button onClick={props.close}>{words.act.cancel}</button>
      </div>
    </dialog>
  );
}

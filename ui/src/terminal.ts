// SPDX-License-Identifier: Apache-2.0
// A terminal on the screen: xterm.js, loaded as a file of its own when the first terminal is opened.
import { FitAddon } from '@xterm/addon-fit';
import { Terminal } from '@xterm/xterm';
import '@xterm/xterm/css/xterm.css';

export interface Screen {
  write(bytes: Uint8Array): void;
  focus(): void;
  size(): { columns: number; rows: number };
  end(): void;
}

/** open shows a terminal in an element until end. */
export function open(box: HTMLElement, typed: (text: string) => void, sized: (columns: number, rows: number) => void): Screen {
  const style = getComputedStyle(box);
  const terminal = new Terminal({
    fontFamily: style.fontFamily,
    fontSize: 14,
    scrollback: 5_000,
    screenReaderMode: true,
    linkHandler: { activate: () => undefined }, // what a container writes opens nothing
    theme: { background: '#16181a', foreground: '#e4e2dc', cursor: '#7fc1cc' },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(box);
  terminal.onData(typed);
  terminal.onResize((s) => sized(s.cols, s.rows));
  const watch = new ResizeObserver(() => fit.fit());
  watch.observe(box);
  fit.fit();
  return {
    write: (bytes) => terminal.write(bytes),
    focus: () => terminal.focus(),
    size: () => ({ columns: terminal.cols, rows: terminal.rows }),
    end: () => {
      watch.disconnect();
      terminal.dispose();
    },
  };
}

// SPDX-License-Identifier: Apache-2.0
// The protocol of exec: binary messages, whose first byte is a channel. Pure; test/channels.test.ts has it.

export const protocols = ['v5.channel.k8s.io', 'v4.channel.k8s.io'];

const input = 0;
const output = 1;
const errors = 2;
const status = 3;
const resize = 4;

const encoder = new TextEncoder();

function message(channel: number, text: string): Uint8Array<ArrayBuffer> {
  const body = encoder.encode(text);
  const out = new Uint8Array(body.length + 1);
  out[0] = channel;
  out.set(body, 1);
  return out;
}

/** typed is what a person typed. */
export const typed = (text: string) => message(input, text);

/** sized says how large the terminal is. */
export const sized = (columns: number, rows: number) => message(resize, JSON.stringify({ Width: columns, Height: rows }));

export interface End {
  /** code is the exit code, if the command ran to its end. */
  code?: number;
  message: string;
}

/** read takes a message apart: output for the screen, or how the command ended. */
export function read(data: ArrayBuffer): { output?: Uint8Array; end?: End } {
  const bytes = new Uint8Array(data);
  const body = bytes.subarray(1);
  switch (bytes[0]) {
    case output:
    case errors:
      return { output: body };
    case status:
      return { end: endOf(new TextDecoder().decode(body)) };
    default:
      return {};
  }
}

/** endOf reads a Status. */
function endOf(text: string): End {
  try {
    const s = JSON.parse(text) as { status?: string; message?: string; details?: { causes?: { reason?: string; message?: string }[] } };
    if (s.status === 'Success') return { code: 0, message: '' };
    const code = s.details?.causes?.find((c) => c.reason === 'ExitCode')?.message;
    return { message: s.message ?? '', ...(code !== undefined && { code: Number(code) }) };
  } catch {
    return { message: text };
  }
}

/** execPath is where a command in a container is run. */
export function execPath(pod: string, container: string, command: string[]): string {
  const query = new URLSearchParams({ container, stdin: 'true', stdout: 'true', tty: 'true' });
  for (const part of command) query.append('command', part);
  return `${pod}/exec?${query}`;
}

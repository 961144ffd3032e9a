// SPDX-License-Identifier: Apache-2.0
import { deepEqual, equal } from 'node:assert/strict';
import { test } from 'node:test';
import { execPath, read, sized, typed } from '../src/channels';

const message = (channel: number, text: string) => Uint8Array.from([channel, ...new TextEncoder().encode(text)]).buffer;

test('messages of a terminal', () => {
  deepEqual([...typed('é')], [0, 0xc3, 0xa9]);
  equal(new TextDecoder().decode(sized(80, 24)), '\u0004{"Width":80,"Height":24}');
  equal(new TextDecoder().decode(read(message(1, 'hello')).output), 'hello');
  equal(new TextDecoder().decode(read(message(2, 'oh')).output), 'oh');
  deepEqual(read(message(3, '{"status":"Success"}')).end, { code: 0, message: '' });
  const failed = { status: 'Failure', message: 'command terminated with exit code 3', details: { causes: [{ reason: 'ExitCode', message: '3' }] } };
  deepEqual(read(message(3, JSON.stringify(failed))).end, { code: 3, message: 'command terminated with exit code 3' });
  deepEqual(read(message(3, 'not JSON')).end, { message: 'not JSON' });
  deepEqual(read(message(255, '\u0001')), {});
  deepEqual(read(new ArrayBuffer(0)), {});
});

test('a command is quoted in its path', () => {
  equal(
    execPath('/api/v1/namespaces/a/pods/b', 'c', ['sh', '-c', 'a&b=c d']),
    '/api/v1/namespaces/a/pods/b/exec?container=c&stdin=true&stdout=true&tty=true&command=sh&command=-c&command=a%26b%3Dc+d',
  );
});

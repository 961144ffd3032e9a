// SPDX-License-Identifier: Apache-2.0
import { deepEqual, equal } from 'node:assert/strict';
import { test } from 'node:test';
import { parse, whatIfAt } from '../src/route';
import { fates, question } from '../src/suppose';

test('what if: the question', () => {
  const none = { node: '', how: 'drain', added: 0, resources: 'cpu=4' } as const;
  equal(question(none), undefined);
  deepEqual(question({ ...none, node: 'a' }), { drain: ['a'] });
  deepEqual(question({ node: 'a', how: 'remove', added: 2, resources: 'cpu=4, memory=8Gi' }), { remove: ['a'], addNodes: '2,cpu=4,memory=8Gi' });
  deepEqual(question({ ...none, added: 1, resources: '' }), { addNodes: '1' });
  deepEqual(parse(whatIfAt('a/b')), { view: 'whatif', node: 'a/b' });
  deepEqual(parse(whatIfAt()), { view: 'whatif', node: '' });
});

test('what if: the answer, what has no node first', () => {
  const decision = { attempt: 1, nodes: 1, fit: 0, rejected: [{ node: 'a', plugin: 'P', reason: 'full' }] };
  const lines = fates({
    nodes: 2,
    outcomes: [
      { namespace: 's', name: 'goes', why: 'leaves a', node: 'b' },
      { namespace: 's', name: 'waits', why: 'pending', reason: 'long', decision },
    ],
    lost: [{ namespace: 's', name: 'alone', why: 'leaves a' }],
  });
  deepEqual(lines.map((l) => [l.name, l.fate, l.node, l.reasons]), [
    ['alone', 'lost', '', []],
    ['waits', 'pending', '', ['a: full']],
    ['goes', 'placed', 'b', []],
  ]);
  deepEqual(fates({ nodes: 1, outcomes: null }), []);
});

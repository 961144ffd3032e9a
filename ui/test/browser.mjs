// SPDX-License-Identifier: Apache-2.0
// The page in Chromium, in front of a real cluster. test/dashboard_test.go starts the cluster and runs this with
// KEELSON (the program), KEELSON_DATA_DIR and CHROMIUM.
import { strict as assert } from 'node:assert';
import { spawn, execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';

const program = process.env.KEELSON;
const patience = 60_000; // much longer than anything takes

const kubectl = (...args) => execFileSync(program, ['kubectl', ...args], { encoding: 'utf8' });

const children = [];

/** dashboard starts the command and returns its link and what it prints. */
async function dashboard(...args) {
  const child = spawn(program, ['dashboard', '--no-open', ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  const d = { child, said: '', links: () => d.said.match(/http:\/\/\S+/g) ?? [] };
  await new Promise((done, failed) => {
    child.once('exit', () => failed(new Error(`keelson dashboard ended: ${d.said}`)));
    child.stdout.on('data', (b) => {
      d.said += b;
      if (d.said.includes('Ctrl-C')) done();
    });
  });
  d.link = d.links()[0];
  d.base = d.link.split('#')[0];
  return d;
}

let browser;
let main;

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
  main = await dashboard();
});

after(async () => {
  await browser?.close();
  for (const c of children) {
    if (c.exitCode !== null) continue;
    const ended = new Promise((done) => c.once('exit', done));
    c.kill('SIGINT');
    await ended;
  }
});

/** tab is a new tab; it fails the test when a script throws, the policy is violated or a request leaves the machine. */
async function tab(t, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(patience);
  const wrong = [];
  page.on('pageerror', (e) => wrong.push(`script: ${e.message}`));
  page.on('dialog', (d) => {
    wrong.push(`dialog: ${d.message()}`);
    void d.dismiss();
  });
  page.on('console', (m) => {
    if (/Content Security Policy|Trusted/i.test(m.text())) wrong.push(m.text());
  });
  page.on('request', (r) => {
    if (!/^(http|ws):\/\/127\.0\.0\.1:|^blob:/.test(r.url())) wrong.push(`request: ${r.url()}`);
  });
  t.after(async () => {
    await context.close();
    assert.deepEqual(wrong, []);
  });
  return page;
}

/** signedIn is a tab of the administrator. A link lets in once, so that the first tab's key is passed on. */
let mainKey;
async function signedIn(t, hash, options) {
  const page = await tab(t, options);
  if (!mainKey) {
    await page.goto(main.link);
    await page.getByRole('heading', { level: 1 }).filter({ hasText: /well|Nothing/ }).waitFor();
    mainKey = await page.evaluate(() => sessionStorage.getItem('keelson-key'));
  } else {
    await page.addInitScript((k) => sessionStorage.setItem('keelson-key', k), mainKey);
  }
  await page.goto(main.base + hash);
  return page;
}

const shows = (page, text) => page.getByText(text).first().waitFor();

test('way in: the link signs in, leaves the address, and lives in the tab alone', async (t) => {
  const page = await signedIn(t, '#/');
  await page.getByRole('heading', { level: 1 }).filter({ hasText: /not well/ }).waitFor();
  assert.ok(!page.url().includes('enter'), page.url());
  assert.equal((await page.context().cookies()).length, 0);
  await page.reload();
  await page.getByRole('heading', { level: 1 }).filter({ hasText: /not well/ }).waitFor();
  const other = await page.context().newPage();
  await other.goto(main.base);
  await shows(other, 'This tab is not signed in');
});

test('reused link: a sentence on the page, and a new link in the terminal that works', async (t) => {
  const page = await tab(t);
  await page.goto(main.link);
  await shows(page, 'this link was used before');
  await shows(page, 'end keelson dashboard with Ctrl-C');
  while (main.links().length < 2) await new Promise((done) => main.child.stdout.once('data', done));
  const fresh = await tab(t);
  await fresh.goto(main.links()[1]);
  await fresh.getByRole('heading', { level: 1 }).filter({ hasText: /not well/ }).waitFor();
});

test('overview: what is not well and why, in words; fake nodes are not real ones', async (t) => {
  const page = await signedIn(t, '#/');
  const line = page.locator('.problems li', { hasText: 'big' });
  await line.getByText('waits for a node').waitFor();
  await line.getByText(/cpu: asks 1000/).first().waitFor();
  await page.locator('.problems li', { hasText: 'broken' }).getByText(/wait.? for (its|their) image/).waitFor();
  await page.locator('.node.fake', { hasText: 'fake-0' }).waitFor();
  await page.locator('.node:not(.fake)', { hasText: 'here' }).waitFor();
  // a change is seen without a reload
  kubectl('-n', 'shop', 'run', 'later', '--image=keelson.local/hello');
  await page.locator('.dot[title^="shop/later"]').waitFor();
  await line.getByRole('link').click();
  await page.getByRole('heading', { name: 'big' }).waitFor();
});

test('lists: any kind, live, filtered, sorted, by the keyboard', async (t) => {
  const page = await signedIn(t, '#/list/-/v1/pods/shop');
  await page.locator('.row', { hasText: 'talker' }).waitFor();
  await page.keyboard.press('/');
  await page.keyboard.type('talker');
  await page.locator('.row', { hasText: 'big' }).waitFor({ state: 'detached' });
  await page.keyboard.press('Enter');
  await page.keyboard.press('j');
  await page.locator('.row.chosen', { hasText: 'talker' }).waitFor();
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'talker' }).waitFor();
  await page.keyboard.press(':');
  await page.getByRole('dialog').getByRole('textbox').fill('cm');
  await page.locator('.palette a.chosen', { hasText: 'ConfigMap' }).waitFor();
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'ConfigMaps' }).waitFor();
  await page.locator('.row', { hasText: 'kube-root-ca.crt' }).first().waitFor();
});

test('why: the reason in words and the command that helps', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/pods/shop/crashing');
  await shows(page, /exit code 3/);
  await page.locator('.help code', { hasText: 'kubectl logs crashing -n shop -c app --previous' }).waitFor();
  await page.goto(main.base + '#/object/-/v1/pods/shop/big');
  await shows(page, 'None of 3 nodes fits.');
  await page.locator('.help li', { hasText: /fits on here if cpu request <= / }).first().waitFor();
});

test('story: lanes, steps, and what happened in one', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/pods/shop/talker/story');
  await shows(page, /^Ready after/);
  for (const lane of ['API server', 'store', 'scheduler', 'kubelet', 'runtime']) {
    await page.locator('.lane-name', { hasText: lane }).waitFor();
  }
  await page.locator('.steps button', { hasText: /POST pods by/ }).first().click();
  await page.locator('.detail', { hasText: 'admission' }).waitFor();
  const bars = await page.locator('.field .bar').evaluateAll((all) => all.map((b) => [b.offsetLeft, b.offsetWidth, b.parentElement.offsetWidth]));
  assert.ok(bars.length >= 5 && bars.every(([left, width, field]) => left >= 0 && left + width <= field + 5), JSON.stringify(bars));
});

test('why here: scores of the nodes, and why others do not fit', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/pods/shop/talker/place');
  await page.locator('tr.winner', { hasText: 'here' }).getByText('chosen').waitFor();
  await page.locator('tr', { hasText: 'fake-0' }).getByText(/keelson.dev\/fake/).waitFor();
});

test('logs: streamed, filtered, of the run before', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/pods/shop/talker/logs');
  await shows(page, 'word 1');
  const count = async () => Number(/(\d+) line/.exec(await page.locator('.logs .controls').innerText())[1]);
  const first = await count();
  await page.waitForFunction((n) => Number(/(\d+) line/.exec(document.querySelector('.logs .controls').innerText)[1]) > n, first);
  await page.getByLabel(/^Filter/).fill('/^word 1$/');
  await page.waitForFunction(() => document.querySelectorAll('.line').length === 1);
  await page.goto(main.base + '#/object/-/v1/pods/shop/crashing/logs');
  await page.getByLabel('the run before').check();
  await shows(page, 'no database');
});

test('terminal: a shell in the container, its size, and how it ended', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/pods/shop/talker');
  await page.getByRole('link', { name: 'Terminal' }).waitFor();
  assert.equal(await page.evaluate(() => performance.getEntriesByType('resource').some((r) => r.name.includes('terminal'))), false);
  await page.getByRole('link', { name: 'Terminal' }).click();
  const screen = page.locator('.screen .xterm-rows');
  const input = page.locator('.screen textarea');
  await screen.getByText(/[$#]/).first().waitFor();
  await input.pressSequentially('echo a$((6*7))b\n');
  await screen.getByText('a42b').waitFor();
  // colors of any kind are drawn within the content policy
  await input.pressSequentially('printf "\\033[38;2;1;2;3mdeep\\033[0m\\n"\n');
  await screen.locator('span', { hasText: /^deep$/ }).waitFor();
  assert.equal(await screen.locator('span', { hasText: /^deep$/ }).evaluate((el) => getComputedStyle(el).color), 'rgb(1, 2, 3)');
  // a link that a container writes opens nothing, and asks nothing
  await input.pressSequentially('printf "\\033]8;;http://192.0.2.1/\\007away\\033]8;;\\007\\n"\n');
  const away = await screen.locator('span', { hasText: /^away$/ }).boundingBox();
  await page.mouse.move(away.x + 4, away.y + 4); // two moves: a link is looked for where the mouse was
  await page.mouse.move(away.x + 6, away.y + 5);
  await page.mouse.click(away.x + 6, away.y + 5);
  assert.equal(page.context().pages().length, 1);
  await input.pressSequentially('exit 3\n');
  await shows(page, 'ended with exit code 3');
  await page.getByRole('button', { name: 'Open again' }).click();
  await page.getByText('ended with exit code 3').waitFor({ state: 'detached' });
  await input.pressSequentially('echo b$((6*7))c\n');
  await screen.getByText('b42c').waitFor();
});

test('hostile names, labels, annotations, logs and events are text', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/pods/shop/hostile/logs');
  const evil = '<img src=x onerror=alert(1)>';
  await shows(page, evil);
  await page.goto(main.base + '#/object/-/v1/pods/shop/hostile/yaml');
  await shows(page, evil);
  await page.goto(main.base + '#/object/-/v1/pods/shop/hostile/events');
  await shows(page, evil);
  await page.goto(main.base + '#/object/-/v1/pods/shop/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E/why');
  await page.getByRole('heading', { name: evil }).waitFor();
  assert.equal(await page.locator('main img, main script, main iframe').count(), 0);
});

test('edit: checked first, a conflict keeps the text, then it is applied', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/configmaps/shop/settings/yaml');
  await page.getByRole('button', { name: 'Edit' }).click();
  const area = page.locator('textarea');
  await area.fill((await area.inputValue()).replace('color: red', 'color: blue'));
  await page.getByRole('button', { name: 'Check' }).click();
  await page.locator('.diff .added', { hasText: 'color: blue' }).waitFor();
  assert.match(kubectl('-n', 'shop', 'get', 'cm', 'settings', '-o', 'yaml'), /color: red/);
  kubectl('-n', 'shop', 'patch', 'cm', 'settings', '--type=merge', '-p', '{"data":{"size":"7"}}');
  await page.getByRole('button', { name: 'Apply' }).click();
  await shows(page, 'It was changed while you edited it');
  await page.locator('.diff .added', { hasText: 'size: "7"' }).waitFor();
  assert.match(await area.inputValue(), /color: blue/);
  await page.getByRole('button', { name: 'Take their version' }).click();
  await page.getByRole('button', { name: 'Check' }).click();
  await page.getByRole('button', { name: 'Apply' }).click();
  await shows(page, 'Applied.');
  assert.match(kubectl('-n', 'shop', 'get', 'cm', 'settings', '-o', 'yaml'), /color: blue/);
});

test('secrets are masked until they are asked for', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/secrets/shop/hidden/yaml');
  await shows(page, /password: ••••••/);
  assert.ok(!(await page.locator('pre.text').innerText()).includes('c2VjcmV0'));
  await page.getByRole('button', { name: 'Show values' }).click();
  await shows(page, /c2VjcmV0/);
});

/** until asks the cluster until an answer is as it should be. */
async function until(wanted, ...args) {
  let got;
  const end = Date.now() + patience;
  do {
    got = kubectl('-n', 'shop', ...args);
  } while (!wanted.test(got) && Date.now() < end);
  assert.match(got, wanted);
}

const ask = (page) => page.locator('dialog.ask');

test('actions: scale, restart and roll back, each after a question', async (t) => {
  const page = await signedIn(t, '#/object/apps/v1/deployments/shop/web');
  await page.getByRole('button', { name: 'Scale' }).click();
  await ask(page).getByLabel('Pods').fill('3');
  await ask(page).getByText('1 pod more: 2 become 3.').waitFor();
  await ask(page).getByRole('button', { name: 'Scale' }).click();
  await ask(page).waitFor({ state: 'detached' });
  await until(/^3$/, 'get', 'deploy', 'web', '-o', 'jsonpath={.spec.replicas}');
  await page.getByRole('button', { name: 'Restart' }).click();
  await ask(page).getByText(/New pods replace its 3 pods/).waitFor();
  await ask(page).getByRole('button', { name: 'Restart' }).click();
  await ask(page).waitFor({ state: 'detached' });
  await until(/restartedAt/, 'get', 'deploy', 'web', '-o', 'jsonpath={.spec.template.metadata.annotations}');
  await until(/^2$/, 'get', 'deploy', 'web', '-o', 'jsonpath={.metadata.annotations.deployment\\.kubernetes\\.io/revision}');
  await page.reload();
  await page.getByRole('button', { name: 'Roll back' }).click();
  await ask(page).getByLabel('To revision').waitFor();
  await ask(page).locator('.diff .removed', { hasText: 'restartedAt' }).waitFor();
  await ask(page).getByRole('button', { name: 'Roll back' }).click();
  await ask(page).waitFor({ state: 'detached' });
  await until(/^$/, 'get', 'deploy', 'web', '-o', 'jsonpath={.spec.template.metadata.annotations}');
});

test('rollout: old and new ReplicaSets, and what it waits for', async (t) => {
  const page = await signedIn(t, '#/object/apps/v1/deployments/shop/broken');
  await shows(page, 'It waits until the new pods are available.');
  await page.locator('.rollout li', { hasText: 'revision 1, the new one: 0 of 1 ready' }).waitFor();
  kubectl('-n', 'shop', 'set', 'image', 'deploy/broken', 'app=127.0.0.1:1/nothing:2');
  await page.locator('.rollout li', { hasText: 'revision 2, the new one: 0 of 1 ready' }).waitFor();
  await page.locator('.rollout li', { hasText: 'revision 1: 0 of 1 ready' }).waitFor();
  await page.goto(main.base + '#/object/-/v1/pods/shop/crashing');
  await page.locator('.containers', { hasText: /restarted .* its last run ended .* ago with exit code 3/ }).waitFor();
});

test('what if: a node drained and two added, by the scheduler, with nothing written', async (t) => {
  const page = await signedIn(t, '#/object/-/v1/nodes/-/here');
  await page.locator('.actions').getByRole('link', { name: 'What if…' }).click();
  await page.getByLabel('Add nodes').fill('2');
  await page.getByLabel('each with').fill('cpu=2000,memory=8Gi');
  await page.getByRole('button', { name: 'Ask' }).click();
  await page.locator('.events li', { hasText: 'shop/talker' }).getByText('would be lost').waitFor();
  await page.locator('.events li', { hasText: 'shop/big' }).getByText(/would run on added-/).waitFor();
  await shows(page, /would get a node, .*; 5 nodes\./);
  assert.equal(kubectl('get', 'node', 'here', '-o', 'jsonpath={.spec.unschedulable}'), '');
});

test('drain: what is in the way is shown before it starts; cordon and uncordon', async (t) => {
  kubectl('-n', 'shop', 'rollout', 'status', 'deploy/web', `--timeout=${patience}ms`);
  const node = kubectl('-n', 'shop', 'get', 'pods', '-l', 'app=web', '-o', 'jsonpath={.items[0].spec.nodeName}');
  kubectl('-n', 'shop', 'run', 'alone', '--image=keelson.local/hello', `--overrides={"spec":{"nodeName":"${node}"}}`);
  kubectl('-n', 'shop', 'patch', 'pdb', 'web', '--type=merge', '-p', '{"spec":{"minAvailable":3}}');
  await until(/^3 0$/, 'get', 'pdb', 'web', '-o', 'jsonpath={.status.desiredHealthy} {.status.disruptionsAllowed}');
  const page = await signedIn(t, `#/object/-/v1/nodes/-/${node}`);
  await page.getByRole('button', { name: 'Drain' }).click();
  await ask(page).getByText(/PodDisruptionBudget shop.web lets no pod go now/).waitFor();
  const start = ask(page).getByRole('button', { name: 'Drain' });
  assert.ok(await start.isDisabled());
  await ask(page).getByLabel(/Nothing makes these pods again: shop.alone/).check();
  await start.click();
  await ask(page).getByText(/disruption budget/).first().waitFor();
  kubectl('-n', 'shop', 'patch', 'pdb', 'web', '--type=merge', '-p', '{"spec":{"minAvailable":1}}');
  await ask(page).getByText('The node is drained.').waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Uncordon', exact: true }).click();
  await ask(page).getByRole('button', { name: 'Uncordon' }).click();
  await page.getByRole('button', { name: 'Cordon', exact: true }).waitFor();
  await until(/^$/, 'get', 'node', node, '-o', 'jsonpath={.spec.unschedulable}');
});

test('delete: says what goes with it', async (t) => {
  const page = await signedIn(t, '#/object/apps/v1/deployments/shop/web');
  await page.getByRole('button', { name: 'Delete' }).click();
  await ask(page).getByText('3 Pods').waitFor();
  await ask(page).getByText(/ReplicaSets?$/).waitFor();
  await ask(page).getByRole('button', { name: 'Delete' }).click();
  await shows(page, 'It does not exist any more.');
  await until(/^$/, 'get', 'pods', '-l', 'app=web', '-o', 'name');
});

test('a viewer without rights sees what it may, and which rule is missing', async (t) => {
  const d = await dashboard('--kubeconfig', process.env.VIEWER, '--read-only');
  const page = await tab(t);
  await page.goto(d.link);
  await shows(page, 'apiGroups: [""], resources: ["pods"], verbs: ["list"]');
  await page.goto(d.base + '#/list/-/v1/configmaps/shop');
  await page.locator('.row', { hasText: 'settings' }).waitFor();
  await page.goto(d.base + '#/list/-/v1/secrets/shop');
  await shows(page, /You may not list secrets in shop/);
  await page.goto(d.base + '#/object/-/v1/configmaps/shop/settings/yaml');
  await shows(page, /kind: ConfigMap/);
  for (const name of ['Edit', 'Delete']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
});

test('a page of another port gets neither the key nor an answer', async (t) => {
  const page = await signedIn(t, '#/');
  await page.getByRole('heading', { level: 1 }).filter({ hasText: /not well/ }).waitFor();
  const server = createServer((_, resp) => {
    resp.setHeader('Content-Type', 'text/html');
    resp.end('<!doctype html><p>tenant');
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  const tenant = await page.context().newPage();
  await tenant.goto(`http://127.0.0.1:${server.address().port}/`);
  const got = await tenant.evaluate(async ([base, key]) => {
    const tried = { storage: sessionStorage.length + localStorage.length + document.cookie.length };
    const attempt = (f) => f().then((v) => String(v), (e) => `refused: ${e.name}`);
    tried.fetch = await attempt(() => fetch(base + 'api', { headers: { 'Keelson-Key': key } }).then((r) => r.status));
    tried.blind = await attempt(() => fetch(base + 'api', { mode: 'no-cors' }).then((r) => `${r.type} ${r.status}`));
    tried.script = await attempt(() => new Promise((yes, no) => {
      const s = Object.assign(document.createElement('script'), { src: base + 'app.js', onload: yes, onerror: () => no(new Error('x')) });
      document.head.append(s);
    }));
    tried.socket = await attempt(() => new Promise((yes, no) => {
      const w = new WebSocket(base.replace('http', 'ws') + 'dashboard/v1/streams', ['keelson.streams.v1', `keelson.key.${key}`]);
      w.onopen = yes;
      w.onerror = () => no(new Error('x'));
    }));
    return tried;
  }, [main.base, mainKey]);
  assert.equal(got.storage, 0);
  for (const way of ['fetch', 'script', 'socket']) assert.match(got[way], /^refused/, way);
  assert.doesNotMatch(got.blind, /200/);
  const framed = await page.context().newPage();
  await framed.goto(`http://127.0.0.1:${server.address().port}/`);
  await framed.evaluate((base) => document.body.append(Object.assign(document.createElement('iframe'), { src: base })), main.base);
  await framed.waitForFunction(() => document.querySelector('iframe').contentDocument === null);
  assert.equal(await framed.frames().at(-1).locator('#page > *').count(), 0);
});

test('the server restarts: the page says so and goes on', async (t) => {
  const page = await signedIn(t, '#/list/-/v1/pods/shop');
  await page.locator('.row', { hasText: 'talker' }).waitFor();
  await page.locator('.state.live').waitFor();
  process.kill(Number(readFileSync(`${process.env.KEELSON_DATA_DIR}/keelson.pid`, 'utf8')), 'SIGTERM');
  await page.locator('.state.lost').waitFor();
  execFileSync(program, process.env.UP.split(' '), { stdio: 'ignore' });
  await page.locator('.state.live').waitFor();
  kubectl('-n', 'shop', 'create', 'configmap', 'after');
  await page.goto(main.base + '#/list/-/v1/configmaps/shop');
  await page.locator('.row', { hasText: 'after' }).waitFor();
});

test('phone width: nothing is wider than the screen, light or dark', async (t) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await signedIn(t, '#/', { viewport: { width: 390, height: 800 }, colorScheme });
    await page.getByRole('heading', { level: 1 }).filter({ hasText: /not well/ }).waitFor();
    for (const hash of ['#/', '#/list/-/v1/pods', '#/object/-/v1/pods/shop/talker/story', '#/object/-/v1/pods/shop/big']) {
      await page.goto(main.base + hash);
      await page.getByRole('heading', { level: 1 }).waitFor();
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), hash);
    }
    await page.getByRole('button', { name: 'Menu' }).click();
    await page.locator('.side.open a', { hasText: 'Deployments' }).click();
    await page.getByRole('heading', { name: 'Deployments' }).waitFor();
  }
});

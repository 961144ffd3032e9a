// SPDX-License-Identifier: Apache-2.0
// The page: signs in, then shows the view that its address names.
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { enter, Failure, json, key, onSignedOut } from './api';
import { kindsOf } from './discovery';
import { AroundContext, useJson, useKey, useLost } from './hooks';
import type { Around } from './hooks';
import { List } from './list';
import { ObjectView } from './object';
import { Overview } from './overview';
import { Palette } from './palette';
import { Command } from './parts';
import { listAt, namespaces as namespacesRef, overview, parse, pathOf, whatIfAt } from './route';
import type { Ref, Route } from './route';
import type { Meta, Session } from './types';
import { WhatIf } from './whatif';
import { words } from './words';

const ref = (group: string, version: string, resource: string): Ref => ({ group, version, resource });

const groups: { name: string; refs: [string, Ref][] }[] = [
  {
    name: words.nav.workloads,
    refs: [
      ['Pods', ref('', 'v1', 'pods')],
      ['Deployments', ref('apps', 'v1', 'deployments')],
      ['StatefulSets', ref('apps', 'v1', 'statefulsets')],
      ['DaemonSets', ref('apps', 'v1', 'daemonsets')],
      ['Jobs', ref('batch', 'v1', 'jobs')],
      ['CronJobs', ref('batch', 'v1', 'cronjobs')],
    ],
  },
  {
    name: words.nav.network,
    refs: [
      ['Services', ref('', 'v1', 'services')],
      ['EndpointSlices', ref('discovery.k8s.io', 'v1', 'endpointslices')],
      ['Ingresses', ref('networking.k8s.io', 'v1', 'ingresses')],
      ['NetworkPolicies', ref('networking.k8s.io', 'v1', 'networkpolicies')],
    ],
  },
  {
    name: words.nav.config,
    refs: [
      ['ConfigMaps', ref('', 'v1', 'configmaps')],
      ['Secrets', ref('', 'v1', 'secrets')],
    ],
  },
  {
    name: words.nav.storage,
    refs: [
      ['Claims', ref('', 'v1', 'persistentvolumeclaims')],
      ['Volumes', ref('', 'v1', 'persistentvolumes')],
      ['StorageClasses', ref('storage.k8s.io', 'v1', 'storageclasses')],
    ],
  },
  {
    name: words.nav.cluster,
    refs: [
      ['Nodes', ref('', 'v1', 'nodes')],
      ['Namespaces', ref('', 'v1', 'namespaces')],
      ['Events', ref('', 'v1', 'events')],
    ],
  },
];

function useRoute(): Route {
  const [route, set] = useState(parse(location.hash));
  useEffect(() => {
    const moved = () => set(parse(location.hash));
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  return route;
}

/** Page shows the entry until this tab has a key. */
function Page() {
  const route = useRoute();
  const [signed, setSigned] = useState(key() !== '');
  const [said, setSaid] = useState('');
  const code = route.view === 'enter' ? route.code : '';
  useEffect(() => {
    const stop = onSignedOut(() => {
      setSaid(words.entry.ended);
      setSigned(false);
    });
    return () => void stop();
  }, []);
  useEffect(() => {
    if (!code) return;
    history.replaceState(null, '', overview()); // a code that is in no history cannot be found there
    dispatchEvent(new HashChangeEvent('hashchange'));
    enter(code).then(
      () => setSigned(true),
      (e: unknown) => {
        setSaid(e instanceof Failure ? `${e.message}.${e.code === 410 ? ` ${words.entry.suspicious}` : ''}` : String(e));
      },
    );
  }, [code]);
  if (!signed) return <Entry said={said} waiting={code !== '' && !said} />;
  return <Frame route={route} />;
}

function Entry({ said, waiting }: { said: string; waiting: boolean }) {
  return (
    <main class="entry">
      <p class="brand">{words.product}</p>
      {waiting ? (
        <p class="quiet">{words.loading}</p>
      ) : (
        <>
          <h1>{words.entry.title}</h1>
          {said && (
            <p class="note bad" role="alert">
              {said}
            </p>
          )}
          <p>{words.entry.how}</p>
          <Command text={words.entry.command} />
        </>
      )}
    </main>
  );
}

function Frame({ route }: { route: Route }) {
  const [around, setAround] = useState<Around>();
  const [failure, setFailure] = useState('');
  const [jumping, jump] = useState(false);
  const [menu, setMenu] = useState(false);
  const [chosen, choose] = useState('');
  const lost = useLost();
  useEffect(() => {
    json<Session>('/dashboard/v1/session')
      .then(async (session) => {
        setAround({ session, kinds: [] });
        setAround({ session, kinds: await kindsOf() });
      })
      .catch((e: unknown) => setFailure(e instanceof Error ? e.message : String(e)));
  }, []);
  useKey((e) => {
    if (e.key === ':') {
      e.preventDefault();
      jump(true);
    } else if (e.key === '/' && route.view !== 'list') {
      e.preventDefault();
      jump(true);
    }
  });
  useEffect(() => {
    setMenu(false);
    document.title = titleOf(route);
    scrollTo(0, 0);
  }, [route]);
  if (!around) return <main class="entry">{failure ? <p class="note bad">{failure}</p> : <p class="quiet">{words.loading}</p>}</main>;
  const namespace = route.view === 'list' ? route.namespace : chosen;
  return (
    <AroundContext.Provider value={around}>
      <div class="frame">
        <header class="bar-top">
          <button class="burger" aria-expanded={menu} aria-label={words.menu} onClick={() => setMenu(!menu)}>
            <span aria-hidden="true">☰</span>
          </button>
          <a class="brand" href={overview()}>
            {words.product}
          </a>
          <span class="cluster" title={around.session.server}>
            {around.session.context}
            {around.session.readOnly && <span class="tag pale">{words.readOnly}</span>}
          </span>
          <Namespaces
            value={namespace}
            choose={(n) => {
              choose(n);
              if (route.view === 'list') location.hash = listAt(route, n);
            }}
          />
          <button class="jump" onClick={() => jump(true)}>
            {words.jump} <kbd>:</kbd>
          </button>
          <button class="theme" aria-label={words.theme} title={words.theme} onClick={turnTheme}>
            <span aria-hidden="true">◐</span>
          </button>
        </header>
        <nav class={`side ${menu ? 'open' : ''}`}>
          <a href={overview()} aria-current={route.view === 'overview' ? 'page' : undefined}>
            {words.nav.overview}
          </a>
          <a href={whatIfAt()} aria-current={route.view === 'whatif' ? 'page' : undefined}>
            {words.whatif.title}
          </a>
          {groups.map((g) => (
            <div key={g.name}>
              <h2>{g.name}</h2>
              {g.refs.map(([name, r]) => {
                const kind = around.kinds.find((k) => k.resource === r.resource && k.group === r.group);
                const current = (route.view === 'list' || route.view === 'object') && route.resource === r.resource && route.group === r.group;
                return (
                  <a key={name} href={listAt(r, kind?.namespaced ? namespace : '')} aria-current={current ? 'page' : undefined}>
                    {name}
                  </a>
                );
              })}
            </div>
          ))}
          <button class="plain" onClick={() => jump(true)}>
            {words.nav.more}…
          </button>
        </nav>
        <main>
          {lost && (
            <p class="note bad" role="status">
              {words.lost}
            </p>
          )}
          <View route={route} namespace={namespace} />
        </main>
        {jumping && <Palette close={() => jump(false)} />}
      </div>
    </AroundContext.Provider>
  );
}

function View({ route, namespace }: { route: Route; namespace: string }) {
  switch (route.view) {
    case 'overview':
    case 'enter':
      return <Overview namespace={namespace} />;
    case 'whatif':
      return <WhatIf key={route.node} node={route.node} />;
    case 'list':
      return <List key={`${route.group}/${route.resource}/${route.namespace}`} of={route} namespace={route.namespace} />;
    case 'object':
      return <ObjectView key={`${route.group}/${route.resource}/${route.namespace}/${route.name}`} of={route} namespace={route.namespace} name={route.name} tab={route.tab} />;
    case 'unknown':
      return <p class="quiet">{words.notFound}</p>;
  }
}

/** Namespaces lets one be chosen; who may not list them can type one. */
function Namespaces({ value, choose }: { value: string; choose: (n: string) => void }) {
  const asked = useJson<{ items: { metadata: Meta }[] }>(`${pathOf(namespacesRef, '')}?limit=500`, 0, {
    accept: 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io',
  });
  const [typed, setTyped] = useState(value);
  if (asked.failure) {
    return (
      <input
        class="namespace"
        aria-label={words.namespace}
        placeholder={words.namespace}
        value={typed}
        onInput={(e) => setTyped(e.currentTarget.value)}
        onChange={(e) => choose(e.currentTarget.value.trim())}
      />
    );
  }
  const names = (asked.value?.items ?? []).map((n) => n.metadata.name);
  return (
    <select class="namespace" aria-label={words.namespace} value={value} onChange={(e) => choose(e.currentTarget.value)}>
      <option value="">{words.all}</option>
      {[...new Set(value ? [value, ...names] : names)].sort().map((n) => (
        <option key={n} value={n}>
          {n}
        </option>
      ))}
    </select>
  );
}

function titleOf(route: Route): string {
  switch (route.view) {
    case 'list':
      return `${route.resource} · ${words.product}`;
    case 'object':
      return `${route.name} · ${words.product}`;
    default:
      return words.product;
  }
}

const themeName = 'keelson-theme';

function turnTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === 'dark' ||
    (document.documentElement.dataset['theme'] === undefined && matchMedia('(prefers-color-scheme: dark)').matches);
  const next = dark ? 'light' : 'dark';
  document.documentElement.dataset['theme'] = next;
  localStorage.setItem(themeName, next);
}

const theme = localStorage.getItem(themeName);
if (theme === 'light' || theme === 'dark') document.documentElement.dataset['theme'] = theme;

render(<Page />, document.getElementById('page')!);

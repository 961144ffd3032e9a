// SPDX-License-Identifier: Apache-2.0
// All texts of the page. Another language is another value of the type Words.

const plural = (n: number, one: string, many = one + 's') => `${n} ${n === 1 ? one : many}`;

const english = {
  product: 'Keelson',
  readOnly: 'read-only',
  loading: 'Loading',
  lost: 'The connection is lost. What you see is as it was then; it is tried again.',
  back: 'Connected again.',
  all: 'all namespaces',
  namespace: 'Namespace',
  menu: 'Menu',
  theme: 'Light or dark',
  jump: 'Go to',
  jumpHint: 'a kind, or a name of one: pods, deploy, web…',
  jumpNone: 'Nothing has this name.',
  close: 'Close',
  copy: 'Copy',
  copied: 'Copied',
  notFound: 'There is no such page. Press : to go somewhere.',

  entry: {
    title: 'This tab is not signed in',
    how: 'Run this on the machine of the cluster, and open the link that it gives:',
    command: 'keelson dashboard',
    ended: 'The program that served this page has ended, or it was started again.',
    suspicious: 'If it was not you who opened the link, end keelson dashboard with Ctrl-C: all its keys end with it.',
  },

  nav: {
    overview: 'Overview',
    workloads: 'Workloads',
    network: 'Network',
    config: 'Configuration',
    storage: 'Storage',
    cluster: 'Cluster',
    more: 'All kinds',
  },

  denied: (verb: string, what: string, where: string) =>
    `You may not ${verb} ${what}${where ? ` in ${where}` : ' in all namespaces'}. A role needs this rule:`,
  rule: (verb: string, group: string, resource: string) => `apiGroups: ["${group}"], resources: ["${resource}"], verbs: ["${verb}"]`,
  deniedPath: 'You may not see this. An administrator may give you the rule:',
  pathRule: (path: string) => `nonResourceURLs: ["${path}"], verbs: ["get"]`,
  chooseNamespace: 'Choose a namespace that you may see:',

  overview: {
    well: 'Everything is well.',
    notWell: (n: number) => `${n === 1 ? 'One thing is' : `${n} things are`} not well.`,
    empty: 'Nothing runs here yet.',
    counting: (pods: number, nodes: number) => `${plural(pods, 'pod')} on ${plural(nodes, 'node')}`,
    starting: (n: number) => `${plural(n, 'pod')} ${n === 1 ? 'is' : 'are'} starting`,
    nodes: 'Nodes',
    real: 'real',
    fake: 'fake: nothing runs there',
    waiting: 'Without a node',
    more: (n: number) => `and ${n} more`,
    capacity: (used: number, all: string) => `${used} of ${all} pods`,
    first: (n: number) => `Only the first ${n} pods are looked at.`,
    nodeSilent: (node: string) => `Node ${node} does not report`,
    cordoned: 'takes no new pods',
    notReady: 'not ready',
    health: { well: 'runs', starting: 'starts', ill: 'is not well', ended: 'has ended', leaving: 'is leaving' },
  },

  /** problem is what a group of pods says, after its subject. */
  problem: (status: string, unready: boolean, many: boolean): string => {
    const s = many ? '' : 's';
    const are = many ? 'are' : 'is';
    if (unready) return `run${s}, but ${are} not ready`;
    switch (status) {
      case 'Pending':
        return `wait${s} for a node`;
      case 'ImagePullBackOff':
      case 'ErrImageNeverPull':
      case 'InvalidImageName':
        return `wait${s} for ${many ? 'their' : 'its'} image`;
      case 'CrashLoopBackOff':
        return `end${s} again and again`;
      case 'ContainerCreating':
      case 'PodInitializing':
        return `${many ? 'have' : 'has'} not started yet`;
      case 'CreateContainerConfigError':
        return `lack${s} something that ${many ? 'they need' : 'it needs'}`;
      case 'OOMKilled':
        return `ended: out of memory`;
      case 'Error':
        return `ended with an error`;
      case 'Evicted':
        return `${many ? 'were' : 'was'} evicted`;
      case 'Terminating':
        return `${are} deleted and still there`;
      default:
        return `${are} ${status}`;
    }
  },
  subject: (n: number, workload: string) => (n === 1 ? workload : `${n} pods of ${workload}`),

  /** kinds is the name of many objects of a kind. */
  kinds: (kind: string): string =>
    /(s|x|ch)$/.test(kind) ? (kind.endsWith('ints') || kind.endsWith('ics') ? kind : kind + 'es') : /[^aeo]y$/.test(kind) ? kind.slice(0, -1) + 'ies' : kind + 's',

  list: {
    filter: 'Filter',
    filterHint: 'press /',
    count: (shown: number, loaded: number, more: number) =>
      (shown === loaded ? `${loaded}` : `${shown} of ${loaded}`) + (more ? `, ${more} not loaded` : ''),
    loadMore: 'Load more',
    none: 'There are none.',
    noneFound: 'No row matches the filter.',
    gone: 'This kind does not exist in this cluster.',
    live: 'live',
    paused: 'not live',
  },

  object: {
    why: 'Why',
    story: 'Story',
    place: 'Why here',
    events: 'Events',
    logs: 'Logs',
    terminal: 'Terminal',
    yaml: 'YAML',
    gone: 'It does not exist any more.',
    onNode: 'on',
    ownedBy: 'made by',
    age: 'age',
    deleting: 'is being deleted',
  },

  why: {
    well: 'It is as it should be.',
    fits: (node: string, fit: number, nodes: number) =>
      fit === 1 ? `${node} is the only one of ${plural(nodes, 'node')} that fits.` : `${node} had the best score of ${fit} nodes that fit, of ${nodes}.`,
    noneFits: (nodes: number) => `None of ${plural(nodes, 'node')} fits.`,
    next: 'Next',
    nearest: 'Nearest',
    tried: (n: number, next: string) => `Tried ${n === 1 ? 'once' : `${n} times`}${next ? `; the next try comes when ${next}` : ''}.`,
    unknown: 'Not known',
    stock: 'This API server keeps no record of decisions; this is what the pod itself says.',
    containers: 'Containers',
    restarts: (n: number) => `restarted ${n === 1 ? 'once' : `${n} times`}`,
    exit: (code: number, reason: string) => `ended with exit code ${code}${reason && reason !== 'Error' ? ` (${reason})` : ''}`,
    lastEnd: (code: number, memory: boolean, ago: string) => `its last run ended${ago && ` ${ago} ago`} ${memory ? 'because it was out of memory (OOMKilled)' : `with exit code ${code}`}`,
    waits: (reason: string) => `waits: ${reason}`,
    runs: (since: string) => `runs for ${since}`,
    ready: 'ready',
    notReady: 'not ready',
  },

  story: {
    ready: (time: string) => `Ready after ${time}`,
    soFar: (time: string) => `${time} so far`,
    phase: (phase: string) => `Phase ${phase}`,
    partial: 'It began before the server did: the first steps are not known.',
    folded: (time: string) => `${time} without a step`,
    steps: 'Steps',
    at: 'at',
    took: 'took',
    who: 'who',
    what: 'what',
    none: 'Nothing is recorded about this pod.',
    stock: 'This API server does not record what happens to a pod.',
    live: 'as it happens',
    choose: 'Choose a step to see what happened in it.',
    lanes: {
      client: 'client',
      apiserver: 'API server',
      store: 'store',
      controllers: 'controllers',
      scheduler: 'scheduler',
      kubelet: 'kubelet',
      simulator: 'simulator',
      runtime: 'runtime',
      proxy: 'network',
      dns: 'DNS',
    } as Record<string, string>,
    handOffs: [
      '',
      'A client asks for an object. The API server finds out who asks and whether they may, lets admission plugins change or refuse the object, fills in defaults and validates it.',
      'The object is written, and is on disk before the client gets the answer. Nothing runs yet: the object says what is wanted.',
      'No client polls for changes. Each controller has a watch open, along which the API server sends every change.',
      'The controller compares the pods that are wanted with those that exist, and asks for one that is missing.',
      'The pod is written. It has no node yet.',
      'The scheduler watches pods too, and looks for those without a node.',
      'The scheduler leaves out the nodes that the pod cannot run on, gives the others points, and takes the best.',
      'The scheduler starts nothing. It sends the name of the node to the API server, in a binding.',
      'The binding is written: the pod has a node, in spec.nodeName.',
      'The kubelet watches the pods of its own node only. This pod is one of them now.',
      'The kubelet mounts the volumes and has the container runtime make the sandbox with its network, get the images, create and start the containers. Probes then find out whether they work.',
      'The kubelet reports what became of the pod, as its status.',
      'All clients that watch the pod receive it: controllers count it, Services and names lead to it.',
    ],
  },

  place: {
    node: 'node',
    total: 'total',
    weight: (n: number) => `× ${n}`,
    winner: 'chosen',
    runnerUp: 'second',
    refused: 'Nodes that do not fit',
    none: 'No decision of the scheduler is remembered for this pod.',
    how: 'Each plugin gives a node 0 to 100 points, which count as often as its weight says.',
  },

  events: { none: 'No events are kept about it.', times: (n: number) => `${n} times`, ago: (t: string) => `${t} ago` },

  logs: {
    container: 'Container',
    previous: 'the run before',
    follow: 'Follow',
    since: 'Since',
    sinceAll: 'the beginning',
    filter: 'Filter: a word, or /a regular expression/',
    none: 'Nothing has been written yet.',
    noneFound: 'No line matches the filter.',
    ended: 'The log has ended.',
    dropped: (n: number) => `${n} earlier lines are not kept here.`,
    lines: (shown: number, all: number) => (shown === all ? plural(all, 'line') : `${shown} of ${plural(all, 'line')}`),
    download: 'Download',
    newest: 'To the newest line',
  },

  act: {
    cancel: 'Cancel',
    scale: 'Scale',
    restart: 'Restart',
    rollback: 'Roll back',
    cordon: 'Cordon',
    uncordon: 'Uncordon',
    drain: 'Drain',
    remove: 'Delete',
    scaleOf: (name: string) => `Scale ${name}`,
    pods: 'Pods',
    scaling: (from: number, to: number) => {
      if (from === to) return `It has ${plural(from, 'pod')} already.`;
      return to > from ? `${plural(to - from, 'pod')} more: ${from} become ${to}.` : `${plural(from - to, 'pod')} will be deleted: ${from} become ${to}.`;
    },
    scaler: (name: string) => `HorizontalPodAutoscaler ${name} sets this number, and will change it again.`,
    restartOf: (name: string) => `Restart ${name}`,
    restarting: (n: number) => (n === 0 ? 'It has no pods now. The next ones will be new.' : `New pods replace ${n === 1 ? 'its pod' : `its ${n} pods`}, as its update strategy says.`),
    restartingAll: 'New pods replace its pods on all nodes, as its update strategy says.',
    rollbackOf: (name: string) => `Roll ${name} back`,
    revision: 'To revision',
    noRevision: 'There is no earlier revision to go back to.',
    rollingBack: (n: number) => `New pods replace ${n === 1 ? 'its pod' : `its ${n} pods`}. What changes in their template:`,
    cordonOf: (name: string) => `Cordon ${name}`,
    uncordonOf: (name: string) => `Uncordon ${name}`,
    cordoning: 'It takes no new pods. Those that it has go on.',
    uncordoning: 'It takes new pods again.',
    removeOf: (kind: string, name: string) => `Delete ${kind} ${name}`,
    nothingElse: 'Nothing else goes with it.',
    goes: (n: number) => `${plural(n, 'object')} ${n === 1 ? 'goes' : 'go'} with it:`,
    stays: (n: number) => `${plural(n, 'object')} will stay, without an owner:`,
    kindCount: (n: number, kind: string) => `${n} ${kind}${n === 1 ? '' : 's'}`,
    keep: 'Keep what it owns',
    unseen: (kinds: string) => `More may go with it. Not all objects of these kinds could be read: ${kinds}.`,
    again: (maker: string) => `${maker} will make a new one.`,
    nodeGoes: 'Its pods will be deleted. The machine stays, and its kubelet may register it again.',
  },

  drain: {
    title: (node: string) => `Drain ${node}`,
    start: 'Drain',
    plan: (leave: number, stay: number) => `${plural(leave, 'pod')} will leave${stay ? `, ${stay} of DaemonSets or of the node itself will stay` : ''}. The node takes no new pods.`,
    budget: (name: string, allowed: number, pods: string) =>
      `PodDisruptionBudget ${name} lets ${allowed === 0 ? 'no pod' : allowed === 1 ? 'one pod' : `${allowed} pods`} go now, and has these here: ${pods}. The drain waits for it.`,
    alone: (pods: string) => `Nothing makes these pods again: ${pods}. Delete them.`,
    scratch: (pods: string) => `These pods lose the data of their emptyDir volumes: ${pods}. Lose it.`,
    noBudgets: 'You may not list PodDisruptionBudgets: those that hold up the drain appear when it waits.',
    how: 'The pods are evicted from this tab: closing it stops what has not begun. The node stays cordoned.',
    leaving: 'is leaving',
    left: 'has left',
    drained: 'The node is drained.',
  },

  rollout: {
    title: 'Rollout',
    wanted: 'wanted',
    updated: 'new',
    ready: 'ready',
    available: 'available',
    old: 'old',
    set: (revision: number, ready: number, wanted: number, current: boolean) => `revision ${revision}${current ? ', the new one' : ''}: ${ready} of ${wanted} ready`,
    wait: {
      done: 'It is complete: all pods are new and available.',
      controller: 'The controller has not seen the latest change yet.',
      paused: 'It is paused, and goes on when it is resumed.',
      stuck: 'It does not go on. The server says why:',
      update: 'It waits until more pods are new.',
      old: 'It waits until the old pods have gone.',
      available: 'It waits until the new pods are available.',
    },
  },

  whatif: {
    title: 'What if…',
    how: 'The scheduler tries it on the cluster as it is now. Nothing is changed.',
    leaves: 'How the node leaves',
    drain: 'Drain',
    remove: 'Remove',
    node: 'Node',
    noNode: 'no node',
    add: 'Add nodes',
    each: 'each with',
    ask: 'Ask',
    sum: (placed: number, pending: number, lost: number, nodes: number) =>
      `${plural(placed, 'pod')} would get a node, ${pending} would wait, ${lost} would be lost; ${plural(nodes, 'node')}.`,
    fate: {
      placed: (node: string) => `would run on ${node}`,
      pending: (_node: string) => 'would wait for a node',
      lost: (_node: string) => 'would be lost',
    },
  },

  shell: {
    again: 'Open again',
    lost: 'The connection to the container has ended.',
    unloaded: 'The terminal could not be loaded.',
  },

  yaml: {
    edit: 'Edit',
    cancel: 'Cancel',
    check: 'Check',
    apply: 'Apply',
    show: 'Show values',
    hide: 'Hide values',
    checked: 'The server accepts this. What would change:',
    same: 'Nothing would change.',
    applied: 'Applied.',
    conflict: 'It was changed while you edited it. Below is what the others changed; your text is kept.',
    reload: 'Take their version and put my text on it',
    refused: 'The server refuses it:',
    mayNot: 'You may not change it. A role needs this rule:',
  },
};

export type Words = typeof english;

export const words: Words = english;

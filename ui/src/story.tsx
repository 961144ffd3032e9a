// SPDX-License-Identifier: Apache-2.0
// A pod's story: lanes of components, hand-offs, time to scale with idle times folded.
import { useEffect, useMemo, useState } from 'preact/hooks';
import { streams } from './api';
import { layOut, laneOf, place, span } from './pure';
import type { Bar } from './pure';
import type { Step, Story } from './types';
import { words } from './words';

const w = words.story;

export interface Telling {
  story?: Story;
  failure?: string;
  code: number;
  live: boolean;
}

/** useStory follows a pod's story until it is complete. */
export function useStory(namespace: string, name: string): Telling {
  const [telling, set] = useState<Telling>({ code: 0, live: false });
  useEffect(() => {
    let ended = false;
    let stop: () => void = () => undefined;
    const follow = () => {
      stop = streams.open(
        `/keelson/v1/timeline/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}?follow=true`,
        'application/json',
        {
          line: (line) => {
            if (line) set({ story: JSON.parse(line) as Story, code: 200, live: true });
          },
          end: (failure, code, lost) => {
            if (ended) return;
            if (lost) setTimeout(() => !ended && follow(), 2_000);
            else set((t) => ({ ...t, failure, code, live: false }));
          },
        },
      );
    };
    follow();
    return () => {
      ended = true;
      stop();
    };
  }, [namespace, name]);
  return telling;
}

export function StoryView({ telling }: { telling: Telling }) {
  const { story } = telling;
  const [chosen, choose] = useState<Step>();
  const laid = useMemo(() => (story ? layOut(story) : undefined), [story]);
  if (!story || !laid) {
    if (telling.code === 404) return <p class="quiet">{telling.failure?.includes('pod') ? w.none : w.stock}</p>;
    if (telling.code === 403) {
      return (
        <div class="note bad" role="alert">
          <p>{words.deniedPath}</p>
          <pre>{words.pathRule('/keelson/v1/timeline/*')}</pre>
        </div>
      );
    }
    return <p class="quiet">{telling.failure || words.loading}</p>;
  }
  const steps = story.steps ?? [];
  const at = (t: number) => `${place(laid.segments, t) * 100}%`;
  const lane = (name: string) => laid.lanes.indexOf(name);
  return (
    <div class="story">
      <p class="lead">
        {story.readyAfter ? w.ready(span(story.readyAfter)) : `${w.phase(story.phase)} · ${w.soFar(span(story.total))}`}
        {telling.live && !story.done && <span class="state live">{w.live}</span>}
      </p>
      {story.partial && <p class="quiet">{w.partial}</p>}
      <div class="lanes" role="img" aria-label={words.object.story}>
        <div class="names">
          {laid.lanes.map((l) => (
            <div key={l} class={`lane-name ${colorOf(l)}`}>
              {w.lanes[l] ?? l}
            </div>
          ))}
        </div>
        <div class="field" style={{ height: `${laid.lanes.length * laneHeight}px` }}>
          {laid.lanes.map((l, i) => (
            <div key={l} class="lane" style={{ top: `${i * laneHeight}px` }} />
          ))}
          {laid.segments
            .filter((s) => s.folded)
            .map((s) => (
              <div
                key={s.from}
                class="fold"
                style={{ left: `${s.left * 100}%`, width: `${s.width * 100}%` }}
                title={w.folded(span(s.to - s.from))}
              >
                <span>{span(s.to - s.from)}</span>
              </div>
            ))}
          {laid.arrows.map((a, i) => {
            const from = lane(a.from);
            const to = lane(a.to);
            const top = Math.min(from, to) * laneHeight + laneHeight / 2;
            return (
              <div
                key={i}
                class={`arrow ${to < from ? 'up' : 'down'}`}
                style={{ left: at(a.at), top: `${top}px`, height: `${Math.abs(to - from) * laneHeight}px` }}
              />
            );
          })}
          {laid.bars.map((b, i) => (
            <Block key={i} bar={b} top={lane(b.lane) * laneHeight} left={place(laid.segments, b.at)} right={place(laid.segments, b.at + b.took)} chosen={b.step === chosen} choose={choose} />
          ))}
        </div>
      </div>
      <div class="ruler">
        <span>0</span>
        <span>{span(laid.segments.at(-1)?.to ?? story.total)}</span>
      </div>
      <div class="telling">
        <table class="steps">
          <caption>{w.steps}</caption>
          <thead>
            <tr>
              <th class="number">{w.at}</th>
              <th class="number">{w.took}</th>
              <th>{w.who}</th>
              <th>{w.what}</th>
            </tr>
          </thead>
          <tbody>
            {steps.map((s, i) => (
              <tr key={i} class={`${chosen && at1(chosen) === at1(s) && chosen.what === s.what ? 'chosen' : ''} ${s.error ? 'failed' : ''} ${s.watch ? 'watch' : ''}`} onClick={() => choose(s)}>
                <td class="number">{span(s.at)}</td>
                <td class="number">{span(s.took)}</td>
                <td class={`who ${colorOf(laneOf(s.who))}`}>{w.lanes[s.who] ?? s.who}</td>
                <td>
                  <button class="plain" onClick={() => choose(s)}>
                    {s.what}
                    {s.error && `: ${s.error}`}
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
        <Detail step={chosen} />
      </div>
    </div>
  );
}

const laneHeight = 30;

const at1 = (s: Step) => s.at;

function Block(props: { bar: Bar; top: number; left: number; right: number; chosen: boolean; choose: (s: Step) => void }) {
  const { bar } = props;
  return (
    <button
      class={`bar ${colorOf(bar.lane)} ${bar.failed ? 'failed' : ''} ${props.chosen ? 'chosen' : ''}`}
      style={{ left: `${props.left * 100}%`, width: `${(props.right - props.left) * 100}%`, top: `${props.top}px` }}
      title={`${span(bar.took)}  ${bar.step.what}`}
      aria-label={`${bar.lane}: ${bar.step.what}`}
      onClick={() => props.choose(bar.step)}
      tabIndex={-1}
    />
  );
}

const colors = ['client', 'apiserver', 'store', 'controllers', 'scheduler', 'kubelet', 'runtime', 'proxy', 'dns'];
const colorOf = (l: string) => `c-${colors.includes(l) ? l : l === 'simulator' ? 'kubelet' : 'other'}`;

function Detail({ step }: { step: Step | undefined }) {
  if (!step) return <aside class="detail quiet">{w.choose}</aside>;
  const parts = step.parts ?? [];
  const hand = step.handOff || parts.find((p) => p.handOff)?.handOff || 0;
  return (
    <aside class="detail" aria-live="polite">
      <h3>{step.who}</h3>
      <p>{step.what}</p>
      {step.error && <p class="bad">{step.error}</p>}
      {hand > 0 && <p class="lesson">{w.handOffs[hand]}</p>}
      {parts.length > 0 && (
        <dl>
          {parts.map((p, i) => (
            <div key={i}>
              <dt>
                {p.who} <span class="quiet">{span(p.took)}</span>
              </dt>
              <dd>
                {p.what}
                {p.error && <span class="bad"> {p.error}</span>}
              </dd>
            </div>
          ))}
        </dl>
      )}
    </aside>
  );
}

// SPDX-License-Identifier: Apache-2.0
// What each rank did in the last steps, a row a rank: a stage as long as it took, and where the rank waited for others. Below, how each
// worker did in the last of them.
import { byId, element, isNumber, seconds } from './format.js';

const COLOURS = ['#3b6fd4', '#c77f2a', '#2f8f5b', '#9a55b5', '#c2474b', '#2a8c96', '#8a7a2f', '#b8578a', '#5b6b8c', '#6f9a3d', '#a0623f'];

const stages_of = (steps) => [...new Set(steps.flatMap((step) => Object.values(step.ranks).flatMap((stages) => stages.map(([name]) => name))))];

// Steps as the run wrote them; nothing of what is none.
function whole(steps) {
  return steps.filter((step) => isNumber(step?.begin_s) && step.ranks && typeof step.ranks === 'object').map((step) => ({ ...step,
    ranks: Object.fromEntries(Object.entries(step.ranks).filter(([, stages]) => Array.isArray(stages)).map(([rank, stages]) =>
      [rank, stages.filter((it) => Array.isArray(it) && it.length === 4 && it.slice(1).every(isNumber))])) }));
}

// Of the other ranks that go through a stage, the one that waited least there: it came last to where they meet.
function last_of(step, rank, stage, waited) {
  let found = 'others', least = waited;
  for (const other of Object.keys(step.ranks))
    for (const [name, , , waits] of step.ranks[other])
      if (other !== rank && name === stage && waits < least) [found, least] = [other, waits];
  return found;
}

function rows_of_workers(step) {
  const workers = step.workers && typeof step.workers === 'object' ? Object.entries(step.workers) : [];
  return workers.filter(([, how]) => typeof how === 'string').sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
    .map(([name, how]) => element('div', { class: 'rank' }, element('span', { class: 'muted' }, name), element('span', {}, how)));
}

export function draw_timeline(given) {
  const steps = whole(given);
  byId('timeline').hidden = steps.length === 0;
  if (!steps.length) return 0;
  const begin = steps[0].begin_s;
  const end = Math.max(...steps.flatMap((step) => Object.values(step.ranks).flat().map((it) => step.begin_s - begin + it[2] / 1e3)), 1e-3);
  const names = stages_of(steps), colour = (name) => COLOURS[names.indexOf(name) % COLOURS.length];
  const ranks = [...new Set(steps.flatMap((step) => Object.keys(step.ranks)))].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  const place = (from, to) => ({ left: `${(100 * from) / end}%`, width: `${Math.max(0.05, (100 * (to - from)) / end)}%` });
  let drawn = 0;
  const rows = ranks.map((rank) => {
    const lane = element('div', { class: 'lane' });
    for (const step of steps)
      for (const [name, from, to, waited] of step.ranks[rank] || []) {
        const at = step.begin_s - begin;
        const note = waited >= 1 ? `, waited ${seconds(waited / 1e3)} for ${last_of(step, rank, name, waited)}` : '';
        const title = `${name} of step ${step.step}: ${seconds((to - from) / 1e3)}${note}`;
        lane.append(element('div', { class: 'stage', title, style: { ...place(at + from / 1e3, at + to / 1e3), background: colour(name) } }));
        if (waited >= 1) lane.append(element('div', { class: 'stage waits', title, style: place(at + (to - waited) / 1e3, at + to / 1e3) }));
        ++drawn;
      }
    return element('div', { class: 'rank' }, element('span', { class: 'muted' }, rank), lane);
  });
  const marks = element('div', { class: 'lane marks' }, ...steps.map((step) =>
    element('span', { style: { left: `${(100 * (step.begin_s - begin)) / end}%` } }, `step ${step.step}`)));
  const key = [...names.map((name) => element('span', {}, element('i', { style: { background: colour(name) } }), name)),
    element('span', {}, element('i', { class: 'waits' }), 'waits for others')];
  byId('timeline').replaceChildren(element('h3', {}, `The last ${steps.length === 1 ? 'step' : steps.length + ' steps'}, ${seconds(end)}`),
    ...rows, element('div', { class: 'rank' }, element('span', {}), marks), element('div', { class: 'key' }, ...key),
    ...rows_of_workers(steps.at(-1)));
  return drawn;
}

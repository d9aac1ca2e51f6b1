// SPDX-License-Identifier: Apache-2.0
// Polls the run folder's server and keeps header, curves and samples up to date.
import { ask, byId, element, isNumber, number, percent, seconds } from './format.js';
import { Charts } from './charts.js';
import { tiles } from './panels.js';
import { EvalBrowser, SampleBrowser } from './samples.js';

const POLL_MS = 1200, POLL_FINISHED_MS = 8000;

// What the page has drawn so far, for its check (tests/run/board_check.py).
const state = (window.tandemState = { lines: 0, points: 0, step: 0, run_state: '', charts: 0, polls: 0, view: '', open_group: null, open_samples: 0 });

const rows = [];
const names = new Set();
let generation = -1, next_line = 0, drawn_lines = -1, run = {};
const charts = new Charts(byId('charts'));
const samples = new SampleBrowser(state);
const evals = new EvalBrowser();

function start_over() {
  rows.length = 0;
  names.clear();
  next_line = 0;
  drawn_lines = -1;
  charts.clear();
}

async function take_metrics() {
  for (;;) {
    const found = await ask(`/api/metrics?from_line=${next_line}`);
    if (found.generation !== generation) {
      if (generation >= 0) start_over();
      const again = generation >= 0;
      generation = found.generation;
      if (again) continue;
    }
    for (const line of found.lines) {
      rows.push(line);
      for (const [name, value] of Object.entries(line)) if (isNumber(value)) names.add(name);
    }
    next_line = found.next;
    if (found.next >= found.total) return;
  }
}

function draw() {
  if (drawn_lines === rows.length) return;
  drawn_lines = rows.length;
  byId('no-curves').hidden = rows.length > 0;
  byId('tiles').replaceChildren(...tiles(rows).map((it) => element('div', { class: 'tile' },
    element('div', { class: 'label' }, it.label), element('div', { class: 'value' }, it.value), element('div', { class: 'note' }, it.note))));
  state.points = charts.draw(rows, names);
  Object.assign(state, { lines: rows.length, charts: charts.panels.size, step: rows.at(-1)?.step ?? 0 });
}

function fact(id, text) {
  byId(id + '-fact').hidden = !text;
  byId(id).textContent = text;
}

function show_header() {
  const step = rows.at(-1)?.step ?? 0;
  const total = run.total_steps || 0;
  const times = rows.map((row) => row['time/step_s']).filter(isNumber);
  const recent = times.slice(-20);
  const pace = recent.reduce((a, b) => a + b, 0) / Math.max(1, recent.length);
  document.title = `${step} · ${run.name} · Tandem`;
  byId('name').textContent = run.name;
  byId('name').title = run.folder;
  byId('state').textContent = run.state;
  byId('state').className = 'pill ' + run.state;
  byId('step').textContent = step;
  byId('of-steps').textContent = total ? ` / ${total}` : '';
  byId('progress').style.width = run.state === 'finished' ? '100%' : total ? `${Math.min(100, (100 * step) / total)}%` : '0';
  fact('remaining', run.state === 'running' && total > step && recent.length ? seconds((total - step) * pace) : '');
  fact('elapsed', isNumber(run.summary?.seconds) ? seconds(run.summary.seconds) : times.length ? seconds(times.reduce((a, b) => a + b, 0)) : '');
  const version = rows.at(-1)?.policy_version;
  fact('version', isNumber(version) ? String(version) : '');
  state.run_state = run.state;
}

function show_recipe() {
  byId('config').textContent = run.config || 'config.yaml is not there yet.';
  const it = run.summary;
  const facts = [];
  if (it) {
    if (isNumber(it.eval_before?.accuracy)) facts.push(['Accuracy before', percent(it.eval_before.accuracy)]);
    if (isNumber(it.eval_after?.accuracy)) facts.push(['Accuracy after', percent(it.eval_after.accuracy)]);
    for (const when of ['before', 'after']) {
      const { accuracy, mean_score: score } = it['eval_' + when] || {};
      if (isNumber(score) && score !== accuracy) facts.push(['Mean score ' + when, number(score)]);
    }
    for (const [label, value, format] of [['Steps', it.steps, number], ['Time', it.seconds, seconds], ['Tokens', it.tokens, number]])
      if (isNumber(value)) facts.push([label, format(value)]);
  }
  byId('summary').className = facts.length ? 'tiles' : '';
  byId('summary').replaceChildren(...facts.map(([label, value]) => element('div', { class: 'tile' },
    element('div', { class: 'label' }, label), element('div', { class: 'value' }, value))));
}

function show_view() {
  const wanted = location.hash.slice(1) || 'curves';
  const known = ['curves', 'samples', 'evaluation', 'recipe'];
  state.view = known.includes(wanted) ? wanted : 'curves';
  for (const view of known) byId('view-' + view).hidden = view !== state.view;
  for (const link of document.querySelectorAll('nav a')) link.classList.toggle('on', link.hash === '#' + state.view);
  if (state.view === 'curves') charts.resize();
}

async function poll() {
  try {
    run = await ask('/api/run');
    await take_metrics();
    show_header();
    draw();
    show_recipe();
    if (state.view === 'samples' || state.view === 'evaluation') await refresh_samples();
    ++state.polls;
  } catch (error) {
    byId('state').textContent = 'no connection';
    byId('state').className = 'pill lost';
    byId('state').title = String(error);
  }
  setTimeout(poll, run.state === 'finished' && state.polls > 1 ? POLL_FINISHED_MS : POLL_MS);
}

async function refresh_samples() {
  const found = await ask('/api/steps');
  await samples.refresh(found.steps);
  await evals.refresh(found.evals);
}

byId('smoothing').addEventListener('input', (event) => {
  charts.smoothing = Number(event.target.value);
  byId('smoothing-value').textContent = charts.smoothing ? charts.smoothing.toFixed(2) : 'off';
  drawn_lines = -1;
  draw();
});
window.addEventListener('hashchange', () => { show_view(); refresh_samples().catch(() => {}); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { charts.clear(); drawn_lines = -1; draw(); });
show_view();
poll();

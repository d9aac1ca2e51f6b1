// SPDX-License-Identifier: Apache-2.0
// Polls the run folder's server and keeps header, curves and samples up to date.
import { ask, byId, element, isNumber, number, on_typing, percent, seconds } from './format.js';
import { Charts } from './charts.js';
import { EvalBrowser, example } from './evaluation.js';
import { tiles } from './panels.js';
import { Template } from './prompt.js';
import { Recipe } from './recipe.js';
import { SampleBrowser } from './samples.js';
import { draw_timeline } from './timeline.js';

const POLL_MS = 1200, POLL_ENDED_MS = 3000;  // a run that ended may be resumed

// What the page has drawn so far, for its check (tests/run/board_check.py).
const state = (window.tandemState = { lines: 0, points: 0, step: 0, run_state: '', charts: 0, polls: 0, view: '', open_group: null, open_samples: 0, stages: 0, step_lists: 0 });

const rows = [];
const names = new Set();
let generation = -1, next_line = 0, drawn_lines = -1, run = {};
const charts = new Charts(byId('charts'));
const template = new Template();
const samples = new SampleBrowser(state, template);
const evals = new EvalBrowser(template);
const recipe = new Recipe();

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
  Object.assign(state, { lines: rows.length, step: rows.at(-1)?.step ?? 0 });
  if (state.view !== 'curves' || drawn_lines === rows.length) return;
  drawn_lines = rows.length;
  byId('no-curves').hidden = rows.length > 0;
  byId('tiles').replaceChildren(...tiles(rows).map((it) => element('div', { class: 'tile' },
    element('div', { class: 'label' }, it.label), element('div', { class: 'value' }, it.value), element('div', { class: 'note' }, it.note))));
  state.points = charts.draw(rows, names);
  state.charts = charts.panels.size;
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
  document.title = `${run.state === 'running' ? step : run.state} · ${run.name} · Tandem`;
  byId('name').textContent = run.name;
  byId('name').title = run.folder;
  byId('state').textContent = run.state === 'empty' ? 'not begun' : run.state;
  byId('state').className = 'pill ' + run.state;
  byId('step').textContent = step;
  byId('of-steps').textContent = total ? ` / ${total}` : '';
  byId('progress').style.width = run.state === 'finished' ? '100%' : total ? `${Math.min(100, (100 * step) / total)}%` : '0';
  fact('remaining', run.state === 'running' && total > step && recent.length ? seconds((total - step) * pace) : '');
  fact('elapsed', isNumber(run.summary?.seconds) ? seconds(run.summary.seconds) : times.length ? seconds(times.reduce((a, b) => a + b, 0)) : '');
  byId('elapsed-note').textContent = run.state === 'running' ? 'so far' : 'in all';
  const version = rows.at(-1)?.policy_version;
  fact('version', isNumber(version) ? String(version) : '');
  state.run_state = run.state;
}

const shell_text = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// Why a run that ended did so, and how it goes on.
function show_end() {
  const titles = { failed: 'This run failed', stopped: 'This run was stopped',
    killed: 'This run ended without a word: its process was killed, or the machine went down' };
  const title = titles[run.state];
  const wrote = isNumber(run.wrote_unix_s) ? new Date(1000 * run.wrote_unix_s).toLocaleString() : '';
  const text = JSON.stringify([run.state, run.error, wrote, run.saved_step, rows.length > 0]);
  byId('end').hidden = !title;
  if (text === byId('end').dataset.shown) return;
  byId('end').dataset.shown = text;
  if (!title) return;
  const command = rows.length && !isNumber(rows.at(-1).policy_version) ? 'sft' : 'run';
  const folder = shell_text(run.folder), config = shell_text(run.folder + '/config.yaml');
  const saved = isNumber(run.saved_step) ? `Step ${run.saved_step} is saved. The run goes on from there with`
    : 'No step is saved. The run begins again with';
  byId('end').className = 'notice ' + run.state;
  byId('end').replaceChildren(element('b', {}, title + '.'), ...(run.error ? [element('pre', { class: 'text' }, run.error)] : []),
    element('p', {}, wrote ? `It last wrote at ${wrote}. ` : '', saved),
    element('pre', { class: 'text command' }, `tandem ${command} ${config} --run-dir ${folder} --resume`));
}

function show_summary() {
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
  draw();
  if (state.view === 'curves') charts.resize();  // the window may have changed meanwhile
}

let timeline_of = -1;  // lines when it was drawn
async function show_timeline() {
  if (state.view !== 'curves' || timeline_of === rows.length) return;
  timeline_of = rows.length;
  state.stages = draw_timeline((await ask('/api/timeline')).steps);
}

// The list of steps is long: it is asked for when an evaluation has come, and again until the answers are there, which are written beside
// the run.
const ASKS_FOR_ANSWERS = 5;
let example_of = '', example_rows = 0, example_state = '', asks = 0;  // evaluations, lines and state when it was chosen
async function show_example() {
  if (state.view !== 'curves' || !rows.length) return;
  const evaluates = (row) => Object.keys(row).some((name) => name.startsWith('eval/'));
  const again = example_rows > rows.length || example_state !== run.state;
  if (again || rows.slice(example_rows).some(evaluates)) asks = ASKS_FOR_ANSWERS;
  example_rows = rows.length;
  example_state = run.state;
  if (asks <= 0) return;
  --asks;
  const { evals: steps } = await ask('/api/steps');
  state.step_lists += 1;
  if (JSON.stringify(steps) === example_of) return;
  example_of = JSON.stringify(steps);
  asks = 0;
  charts.show_example(steps.length > 1 ? await example(steps[0].step, steps.at(-1).step, template) : null);
}

async function poll() {
  try {
    run = await ask('/api/run');
    await take_metrics();
    await show_timeline();
    await show_example();
    show_header();
    draw();
    show_end();
    show_summary();
    recipe.refresh(run.config);
    if (state.view === 'samples' || state.view === 'evaluation') await refresh_samples();
    ++state.polls;
  } catch (error) {
    byId('state').textContent = 'no connection';
    byId('state').className = 'pill lost';
    byId('state').title = String(error);
  }
  setTimeout(poll, ['running', 'empty', undefined].includes(run.state) ? POLL_MS : POLL_ENDED_MS);
}

async function refresh_samples() {
  const found = await ask('/api/steps');
  await samples.refresh(found.steps);
  await evals.refresh(found.evals);
}

on_typing(byId('curve-search'), () => {
  charts.wanted = byId('curve-search').value.trim().toLowerCase();
  drawn_lines = -1;
  draw();
});
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

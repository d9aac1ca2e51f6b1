// SPDX-License-Identifier: Apache-2.0
// Browse what was trained: a step, its groups, the answers of one group; and the answers of an evaluation.
import { ask, byId, element, isNumber, number, percent, score_colour } from './format.js';

const chip = (score) => element('span', { class: 'chip', style: { background: score_colour(score) } }, number(score));
const fact = (label, value) => element('span', {}, label + ' ', element('b', {}, value));
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN);

// The end of a prompt tells it apart; its beginning is often the same for all.
function snippet(prompt) {
  const words = prompt.trim().replaceAll(/\s+/g, ' ');
  if (words.length <= 110) return words || '(empty prompt)';
  return '…' + words.slice(-110).replace(/^\S* /, ' ');
}

function pager(root, page, pages, go) {
  root.replaceChildren();
  if (pages < 2) return;
  const button = (text, target) => {
    const made = element('button', { onclick: () => go(target) }, text);
    made.disabled = target < 0 || target >= pages;
    return made;
  };
  root.append(button('‹', page - 1), `page ${page + 1} of ${pages}`, button('›', page + 1));
}

export class SampleBrowser {
  constructor(state) {
    this.state = state;  // shared counters, also read by the page's check
    this.steps = [];
    this.step = null;
    this.page = 0;
    this.open_at = null;
    byId('step-slider').addEventListener('input', (event) => this.choose(Number(event.target.value), false));
    byId('step-back').addEventListener('click', () => this.choose(this.index() - 1, false));
    byId('step-forward').addEventListener('click', () => this.choose(this.index() + 1, false));
    byId('follow').addEventListener('change', () => this.refresh(this.steps));
  }

  index() { return this.steps.findIndex((it) => it.step === this.step); }

  async refresh(steps) {
    this.steps = steps;
    byId('no-samples').hidden = steps.length > 0;
    byId('browser').hidden = steps.length === 0;
    byId('step-slider').max = Math.max(0, steps.length - 1);
    if (!steps.length) return;
    const lost = this.index() < 0;
    if ((byId('follow').checked && this.index() !== steps.length - 1) || lost) await this.choose(steps.length - 1, true);
    else this.show_place();
  }

  show_place() {
    byId('step-slider').value = this.index();
    byId('sample-step').textContent = this.step;
    byId('step-back').disabled = this.index() <= 0;
    byId('step-forward').disabled = this.index() >= this.steps.length - 1;
  }

  async choose(index, following) {
    const it = this.steps[Math.max(0, Math.min(index, this.steps.length - 1))];
    if (!it) return;
    if (!following) byId('follow').checked = false;
    this.step = it.step;
    this.page = 0;
    this.show_place();
    await this.load();
  }

  async load() {
    const wanted = this.step;
    const found = await ask(`/api/samples?step=${wanted}&page=${this.page}`);
    if (wanted !== this.step) return;  // the slider has moved on
    pager(byId('pages'), found.page, found.pages, (page) => { this.page = page; byId('follow').checked = false; this.load(); });
    this.groups = found.groups;
    byId('groups').replaceChildren(...found.groups.map((group) => this.row(group)));
    const open = found.groups[this.open_at];  // the same place in every step, so that one can read along
    if (open) this.open(open, false);
    else byId('group').replaceChildren(element('p', { class: 'empty' }, 'Choose a group to read its answers.'));
  }

  row(group) {
    const scores = group.samples.map((it) => it.score);
    const made = element('button', { class: 'row', role: 'option', onclick: () => this.open(group, true) },
      element('div', { class: 'head' }, element('span', {}, `group ${group.id}`), element('span', {}, 'mean ', element('b', {}, number(mean(scores.filter(isNumber)))))),
      element('div', { class: 'snippet' }, snippet(group.prompt)),
      element('div', { class: 'marks' }, ...scores.map((score) => element('i', { title: number(score), style: { background: score_colour(score) } }))));
    made.dataset.group = group.id;
    return made;
  }

  open(group, chosen) {
    if (chosen) byId('follow').checked = false;
    this.open_at = this.groups.indexOf(group);
    for (const row of byId('groups').children) row.classList.toggle('on', row.dataset.group === String(group.id));
    const head = element('div', { class: 'card' },
      element('div', { class: 'meta' }, fact('group', group.id), fact('prompt row', group.row), fact('policy version', group.version), fact('lag', group.lag)),
      element('pre', { class: 'text' }, group.prompt),
      element('div', { class: 'meta answer' }, fact('expected answer', group.answer)));
    byId('group').replaceChildren(head, ...group.samples.map((sample) => this.card(sample)));
    Object.assign(this.state, { open_group: group.id, open_samples: group.samples.length });
  }

  card(sample) {
    const meta = [chip(sample.score), fact('advantage', number(sample.advantage))];
    for (const part of sample.parts) meta.push(fact(part.name, number(part.value)));
    meta.push(fact('tokens', sample.tokens), fact('ended by', sample.finish));
    if (sample.oldest_version !== sample.newest_version) meta.push(fact('sampled by versions', `${sample.oldest_version} to ${sample.newest_version}`));
    return element('div', { class: 'card sample' }, element('div', { class: 'meta' }, ...meta), element('pre', { class: 'text' }, sample.response));
  }
}

export class EvalBrowser {
  constructor() {
    this.steps = [];
    this.page = 0;
    byId('eval-step').addEventListener('change', () => { this.page = 0; this.load(); });
    byId('eval-filter').addEventListener('change', () => this.show());
  }

  async refresh(steps) {
    const changed = JSON.stringify(steps) !== JSON.stringify(this.steps);
    if (!changed) return;
    const choice = byId('eval-step');
    const at_end = !this.steps.length || Number(choice.value) === this.steps.at(-1).step;
    const before = choice.value;
    this.steps = steps;
    byId('no-evals').hidden = steps.length > 0;
    choice.replaceChildren(...steps.map((it) => element('option', { value: it.step }, `${it.step}  (${percent(it.accuracy)})`)));
    choice.value = at_end && steps.length ? steps.at(-1).step : before;
    if (steps.length) await this.load();
  }

  async load() {
    const step = byId('eval-step').value;
    const found = await ask(`/api/evals?step=${step}&page=${this.page}`);
    if (byId('eval-step').value !== step) return;
    this.answers = found.answers;
    pager(byId('eval-pages'), found.page, found.pages, (page) => { this.page = page; this.load(); });
    const it = this.steps.find((other) => String(other.step) === step);
    byId('eval-accuracy').textContent = it
      ? `${percent(it.accuracy)} of ${it.answers} answers to ${it.prompts} prompts are right, mean score ${number(it.score)}` : '';
    this.show();
  }

  show() {
    const filter = byId('eval-filter').value;
    const kept = (this.answers || []).filter((it) => filter === 'all' || it.right === (filter === 'right'));
    byId('evals').replaceChildren(...kept.map((it) => element('div', { class: 'card' },
      element('div', { class: 'meta' }, chip(it.score), fact('row', it.row), fact('expected answer', it.answer)),
      element('pre', { class: 'text muted' }, it.prompt), element('pre', { class: 'text' }, it.response))));
  }
}

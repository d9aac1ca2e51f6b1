// SPDX-License-Identifier: Apache-2.0
// The answers of one evaluation, beside those of an earlier one: what became right, and what became wrong.
import { ask, byId, chip, element, fact, isNumber, number, on_typing, pager, percent } from './format.js';

const KINDS = [['', 'all', 'answers'], ['right', 'right', 'right'], ['wrong', 'wrong', 'wrong'],
  ['became_right', 'became right', 'became_right'], ['became_wrong', 'became wrong', 'became_wrong']];

const MOST_SHOWN = 100;  // characters of an answer: two lines of its panel, where there is such an answer

// A question that the first evaluation has wrong and the last one right; null if there is none.
export async function example(first, last, template) {
  const { answers, counts } = await ask(`/api/evals?step=${last}&since=${first}&show=became_right&page=0`);
  if (!answers.length) return null;
  template.learn(answers.map((it) => it.prompt));
  const fits = (it) => it.response.trim() && it.before.response.trim() && Math.max(it.response.length, it.before.response.length) <= MOST_SHOWN;
  const it = answers.find(fits) ?? answers[0];
  const said = (step, { response, score }) => [element('div', { class: 'meta' }, step ? `after step ${step}` : 'before training', chip(score)),
    element('div', { class: 'short' }, response.trim())];
  return element('div', { class: 'panel example' }, element('h3', {}, 'A question before and after',
    element('a', { href: '#evaluation' }, `${counts.became_right} became right, ${counts.became_wrong} wrong`)),
    element('p', { class: 'short own' }, template.snippet(it.prompt, it.question)), ...said(first, it.before), ...said(last, it));
}

export class EvalBrowser {
  constructor(template) {
    this.template = template;
    this.steps = [];
    this.page = 0;
    this.kind = '';
    this.since = null;  // a step as the user chose it, '' for none
    this.turn = 0;
    byId('eval-step').addEventListener('change', () => { this.list_earlier(); this.restart(); });
    byId('eval-since').addEventListener('change', (event) => { this.since = event.target.value; this.restart(); });
    byId('eval-set').addEventListener('change', () => this.restart());
    byId('eval-sort').addEventListener('change', () => this.restart());
    on_typing(byId('eval-search'), () => this.restart());
  }

  restart() {
    this.page = 0;
    return this.load();
  }

  async refresh(steps) {
    if (JSON.stringify(steps) === JSON.stringify(this.steps)) return;
    const choice = byId('eval-step'), before = choice.value;
    const at_end = !this.steps.length || Number(before) === this.steps.at(-1).step;
    this.steps = steps;
    byId('no-evals').hidden = steps.length > 0;
    byId('eval-tools').hidden = steps.length === 0;
    choice.replaceChildren(...steps.map((it) => element('option', { value: it.step }, it.step)));
    choice.value = at_end && steps.length ? steps.at(-1).step : before;
    if (!choice.value && steps.length) choice.value = steps.at(-1).step;  // a resume took it back
    this.list_earlier();
    this.list_sets();
    if (steps.length) await this.load();
    else byId('evals').replaceChildren();
  }

  // What the chosen evaluation can be compared with: the first one, unless another was chosen.
  list_earlier() {
    const step = Number(byId('eval-step').value), earlier = this.steps.map((it) => it.step).filter((it) => it < step).map(String);
    byId('eval-since').replaceChildren(element('option', { value: '' }, 'nothing'),
      ...earlier.map((it) => element('option', { value: it }, 'step ' + it)));
    byId('eval-since').value = this.since === '' || earlier.includes(this.since) ? this.since : earlier[0] ?? '';
  }

  // The sets that have names, of any evaluation.
  list_sets() {
    const names = [...new Set(this.steps.flatMap((it) => it.sets.map((set) => set.name)))], before = byId('eval-set').value;
    byId('eval-of').hidden = !names.length;
    byId('eval-set').replaceChildren(element('option', { value: '' }, 'all'), ...names.map((it) => element('option', { value: it }, it)));
    byId('eval-set').value = names.includes(before) ? before : '';
  }

  async load() {
    const turn = ++this.turn, step = byId('eval-step').value, since = byId('eval-since').value, set = byId('eval-set').value;
    if (since === '' && this.kind.startsWith('became')) this.kind = '';
    const asked = new URLSearchParams({ step, page: this.page, show: this.kind, search: byId('eval-search').value.trim(),
      sort: byId('eval-sort').value });
    if (since !== '') asked.set('since', since);
    if (set !== '') asked.set('set', set);
    const found = await ask('/api/evals?' + asked);
    if (turn !== this.turn) return;  // another choice was made meanwhile
    this.template.learn(found.answers.map((it) => it.prompt));
    pager(byId('eval-pages'), found.page, found.pages, (page) => { this.page = page; this.load(); });
    const whole = this.steps.find((it) => String(it.step) === step);
    this.show_counts(found, set === '' ? whole : whole?.sets.find((it) => it.name === set), since);
    byId('evals').replaceChildren(...found.answers.map((it) => this.card(it, step, since)));
    if (!found.answers.length) byId('evals').append(element('p', { class: 'empty' }, 'No answer is like that.'));
  }

  show_counts(found, summary, since) {
    const counts = { ...found.counts, wrong: found.counts.answers - found.counts.right };
    const share = counts.answers ? counts.right / counts.answers : NaN;
    const graded = isNumber(summary?.score) && Math.abs(summary.score - share) > 1e-9;
    byId('eval-accuracy').textContent = `${percent(share)} right` + (graded ? `, mean score ${number(summary.score)}` : '');
    byId('eval-accuracy').title = `An answer is right from a score of ${number(found.right_at)} on.`;
    const kinds = KINDS.filter(([kind]) => since !== '' || !kind.startsWith('became'));
    byId('eval-kinds').replaceChildren(...kinds.map(([kind, label, count]) => element('button',
      { 'aria-pressed': String(kind === this.kind), 'data-show': kind, onclick: () => { this.kind = kind; this.restart(); } },
      label + ' ', element('b', {}, counts[count]))));
  }

  card(it, step, since) {
    const change = it.before && it.right !== it.before.right ? (it.right ? 'became right' : 'became wrong') : '';
    const meta = [chip(it.score), fact('row', it.row), fact('expected answer', it.answer)];
    if (it.set) meta.splice(1, 0, fact('set', it.set));
    if (change) meta.push(element('span', { class: 'change ' + (it.right ? 'good' : 'bad') }, change));
    const said = (when, response, score) => element('div', { class: 'said' },
      element('div', { class: 'meta' }, when, chip(score)), element('pre', { class: 'text' }, response));
    const same = it.before && it.before.response === it.response;
    const answers = it.before && !same
      ? [said(`after step ${since}`, it.before.response, it.before.score), said(`after step ${step}`, it.response, it.score)]
      : [element('pre', { class: 'text' }, it.response)];
    if (same) meta.push(element('span', { class: 'muted' }, `the same answer as after step ${since}`));
    return element('div', { class: 'card answer-card' }, element('div', { class: 'meta' }, ...meta), this.template.folded(it.prompt, it.question),
      element('div', { class: answers.length > 1 ? 'beside' : '' }, ...answers));
  }
}

// SPDX-License-Identifier: Apache-2.0
// Browse what was trained: a step, its groups, the answers of one group.
import { ask, byId, chip, element, fact, isNumber, number, on_typing, pager, score_colour } from './format.js';

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN);

export class SampleBrowser {
  constructor(state, template) {
    this.state = state;  // shared counters, also read by the page's check
    this.template = template;
    this.steps = [];
    this.step = null;
    this.page = 0;
    this.open_at = 0;
    this.turn = 0;
    byId('step-slider').addEventListener('input', (event) => this.choose(Number(event.target.value), false));
    byId('step-back').addEventListener('click', () => this.choose(this.index() - 1, false));
    byId('step-forward').addEventListener('click', () => this.choose(this.index() + 1, false));
    byId('follow').addEventListener('change', () => this.refresh(this.steps));
    byId('sample-sort').addEventListener('change', () => this.restart());
    on_typing(byId('sample-search'), () => this.restart());
  }

  restart() {
    this.page = this.open_at = 0;
    if (this.step !== null) this.load();
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
    const turn = ++this.turn;
    const asked = { step: this.step, page: this.page, search: byId('sample-search').value.trim(), sort: byId('sample-sort').value };
    const found = await ask('/api/samples?' + new URLSearchParams(asked));
    if (turn !== this.turn) return;  // the slider has moved on
    pager(byId('pages'), found.page, found.pages, (page) => { this.page = page; byId('follow').checked = false; this.load(); });
    this.groups = found.groups;
    this.template.learn(found.groups.map((it) => it.prompt));
    byId('found').textContent = asked.search ? `${found.found} of ${this.steps[this.index()]?.groups} groups` : '';
    byId('groups').replaceChildren(...found.groups.map((group) => this.row(group)));
    // The same place in every step, so that one can read along.
    const open = found.groups[Math.min(this.open_at, found.groups.length - 1)];
    if (open) this.open(open, false);
    else byId('group').replaceChildren(element('p', { class: 'empty' }, 'No group holds that text.'));
    byId('groups').hidden = !open;
  }

  row(group) {
    const scores = group.samples.map((it) => it.score);
    const made = element('button', { class: 'row', role: 'option', onclick: () => this.open(group, true) },
      element('div', { class: 'head' }, element('span', {}, `group ${group.id}`), element('span', {}, 'mean ', element('b', {}, number(mean(scores.filter(isNumber)))))),
      element('div', { class: 'snippet' }, this.template.snippet(group.prompt)),
      element('div', { class: 'marks' }, ...scores.map((score) => element('i', { title: number(score), style: { background: score_colour(score) } }))));
    made.dataset.group = group.id;
    return made;
  }

  open(group, chosen) {
    if (chosen) {
      byId('follow').checked = false;
      this.open_at = this.groups.indexOf(group);
    }
    for (const row of byId('groups').children) row.classList.toggle('on', row.dataset.group === String(group.id));
    const meta = [fact('group', group.id), fact('prompt row', group.row), fact('policy version', group.version), fact('lag', group.lag)];
    if (isNumber(group.greedy)) meta.push(element('span', {}, 'greedy answer scored ', chip(group.greedy)));
    const head = element('div', { class: 'card' },
      element('div', { class: 'meta' }, ...meta),
      this.template.shown(group.prompt),
      element('div', { class: 'meta answer' }, fact('expected answer', group.answer)));
    byId('group').replaceChildren(head, ...group.samples.map((sample, index) => this.card(sample, { step: this.step, group: group.id, sample: index })));
    Object.assign(this.state, { open_group: group.id, open_samples: group.samples.length });
  }

  // What each token carries, read once it is asked for.
  tokens(place) {
    const made = element('details', { class: 'tokens' }, element('summary', {}, 'tokens'));
    made.addEventListener('toggle', async () => {
      if (made.children.length > 1) return;
      const rows = element('table');
      made.append(element('div', { class: 'scroll' }, rows));
      const { columns } = await ask('/api/tokens?' + new URLSearchParams(place));
      rows.append(element('tr', {}, ...['', ...columns.map((it) => it.name)].map((name) => element('th', {}, name))));
      (columns[0]?.values ?? []).forEach((_, t) => rows.append(element('tr', {}, element('th', {}, t),
        ...columns.map((it) => element('td', {}, Number.isInteger(it.values[t]) ? it.values[t] : number(it.values[t]))))));
    });
    return made;
  }

  card(sample, place) {
    const meta = [chip(sample.score), fact('advantage', number(sample.advantage))];
    for (const part of sample.parts) meta.push(fact(part.name, number(part.value)));
    meta.push(fact('tokens', sample.tokens), fact('ended by', sample.finish));
    if (sample.oldest_version !== sample.newest_version) meta.push(fact('sampled by versions', `${sample.oldest_version} to ${sample.newest_version}`));
    const made = element('div', { class: 'card sample' }, element('div', { class: 'meta' }, ...meta), element('pre', { class: 'text' },
        sample.has_text ? sample.response : '(the text of this step was not kept: run.samples_steps)'));
    if (sample.has_text) made.append(this.tokens(place));
    return made;
  }
}

// SPDX-License-Identifier: Apache-2.0
// The recipe of a run, as config.yaml has it: every option, and behind those that are not the default a comment that says the default.
import { byId, element } from './format.js';

const OPTION = /^  ([^\s:]+): ((?:"(?:[^"\\]|\\.)*"|[^"])*?)(?:  # default: (.*))?$/;

// [{section, name, value, was}]; `was` is undefined for a default. A line of another form is an option without a name.
export function options_of(text) {
  let section = '';
  const options = [];
  for (const line of text.split('\n')) {
    const option = OPTION.exec(line);
    if (option) options.push({ section, name: option[1], value: option[2], was: option[3] });
    else if (/^[^\s#:]+:\s*$/.test(line)) section = line.trim().slice(0, -1);
    else if (line.trim()) options.push({ section, name: '', value: line });
  }
  return options;
}

export class Recipe {
  constructor() {
    this.text = null;
    byId('recipe-search').addEventListener('input', () => this.show());
    byId('recipe-changed').addEventListener('change', () => this.show());
  }

  refresh(text) {
    if (text === this.text) return;
    this.text = text;
    this.options = options_of(text);
    this.show();
  }

  show() {
    const wanted = byId('recipe-search').value.trim().toLowerCase(), changed_alone = byId('recipe-changed').checked;
    const changed = this.options.filter((it) => it.was !== undefined);
    const found = this.options.filter((it) => (!changed_alone || it.was !== undefined) &&
      `${it.section}.${it.name} ${it.value}`.toLowerCase().includes(wanted));
    const count = changed.length ? `${changed.length} of ${this.options.length} options are not the default`
      : 'this config.yaml does not say the defaults';  // an earlier Tandem wrote it: run.dir is always set
    byId('recipe-count').textContent = this.options.length ? count : '';
    const sections = new Map();
    for (const it of found) {
      if (!sections.has(it.section)) sections.set(it.section, []);
      sections.get(it.section).push(this.row(it));
    }
    const empty = this.options.length ? 'No option is like that.' : 'config.yaml is not there yet.';
    const shown = [...sections].flatMap(([name, rows]) => [element('h2', {}, name), element('div', { class: 'options' }, ...rows)]);
    byId('config').replaceChildren(...(found.length ? shown : [element('p', { class: 'empty' }, empty)]));
  }

  row(it) {
    const changed = it.was !== undefined;
    return element('div', { class: changed ? 'option changed' : 'option', title: it.name ? `${it.section}.${it.name}` : undefined },
      element('span', { class: 'option-name' }, it.name), element('span', { class: 'option-value' }, it.value),
      element('span', { class: 'option-was' }, changed ? `default ${it.was}` : ''));
  }
}

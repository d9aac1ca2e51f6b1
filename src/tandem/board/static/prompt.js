// SPDX-License-Identifier: Apache-2.0
// What of a prompt is its own: the question without the template around it, which the prompts of a run share. Answers of an evaluation
// come with their question; of training samples, and in the folder of an older run, it is found here.
import { element } from './format.js';

const MOST_KNOWN = 32;
const SPECIAL = /<[|｜][^<>]{1,60}[|｜]>|<\/?(?:s|bos|eos|think|start_of_turn|end_of_turn)>|\[\/?(?:INST|SYS)\]/g;
const ROLE = /^(?:system|user|human|assistant|model|developer)\s*:?\s*(?=\n|$)/i;

function common(a, b, at) {
  const most = Math.min(a.length, b.length);
  let length = 0;
  while (length < most && at(a, length) === at(b, length)) ++length;
  return length;
}
const from_start = (text, i) => text[i], from_end = (text, i) => text[text.length - 1 - i];

function end_of_last(text, pattern) {
  let end = 0;
  for (const found of text.matchAll(pattern)) end = found.index + found[0].length;
  return end;
}

// Where shared text ends and the question begins: behind a line or a tag, or behind a sentence where that is far. Questions may begin alike.
function end_of_head(head) {
  const line = end_of_last(head, /\n|<[|｜/\w][^<>\n]{0,60}>|\[\/?[A-Z]+\]/g), sentence = end_of_last(head, /[:.?!] /g);
  return sentence - line > 30 || line === 0 ? Math.max(line, sentence) : line;
}

// Where the question ends: before a line, a tag or a new sentence. Questions may end alike, as in " = ?".
function begin_of_tail(tail) {
  const found = tail.search(/\n|<[|｜/A-Za-z]|\[\/?[A-Z]+\]|(?:^|(?<=[.?!]))\s+(?=[A-Z])/);
  return found < 0 ? tail.length : found;
}

// Of a prompt that is known alone: its last piece between special tokens that is not a role's name.
function last_piece(prompt) {
  const pieces = prompt.split(SPECIAL).map((it) => it.trim().replace(ROLE, '').trim()).filter(Boolean);
  const piece = pieces.at(-1) ?? prompt;
  const begin = prompt.lastIndexOf(piece);
  return [prompt.slice(0, begin), piece, prompt.slice(begin + piece.length)];
}

export class Template {
  constructor() { this.prompts = new Set(); }

  learn(prompts) {
    for (const it of prompts) if (this.prompts.size < MOST_KNOWN) this.prompts.add(it);
  }

  // [before, question, after], which make up the prompt. Shared is what half of the other prompts have, too: a few may be of another kind.
  parts(prompt) {
    const others = [...this.prompts].filter((it) => it !== prompt);
    if (!others.length) return last_piece(prompt);
    const shared = (at) => others.map((it) => common(prompt, it, at)).sort((a, b) => b - a)[Math.floor((others.length - 1) / 2)];
    const begin = end_of_head(prompt.slice(0, shared(from_start)));
    const tail = prompt.slice(Math.max(begin, prompt.length - shared(from_end)));
    const end = prompt.length - tail.length + begin_of_tail(tail);
    return prompt.slice(begin, end).trim() ? [prompt.slice(0, begin), prompt.slice(begin, end), prompt.slice(end)] : last_piece(prompt);
  }

  // For a list: one line.
  snippet(prompt, question = '') {
    return (question || this.parts(prompt)[1]).trim().replaceAll(/\s+/g, ' ').slice(0, 300) || '(empty prompt)';
  }

  // The question, which unfolds to the whole prompt.
  folded(prompt, question = '') {
    const own = (question || this.parts(prompt)[1]).trim();
    return element('details', { class: 'text' }, element('summary', {}, own || '(empty prompt)'), this.shown(prompt, question));
  }

  // The whole prompt; the template is pale. A model may read a question in other words, such as numbers with their last digit first.
  shown(prompt, question = '') {
    const at = question ? prompt.lastIndexOf(question) : -1;
    const [before, own, after] = at < 0 ? this.parts(prompt) : [prompt.slice(0, at), question, prompt.slice(at + question.length)];
    return element('pre', { class: 'text' }, element('span', { class: 'muted' }, before), element('span', { class: 'own' }, own),
      element('span', { class: 'muted' }, after));
  }
}

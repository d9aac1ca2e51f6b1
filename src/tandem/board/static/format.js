// SPDX-License-Identifier: Apache-2.0
// Numbers and elements. Text of a run reaches the page through textContent alone, never as HTML.

export const isNumber = (v) => typeof v === 'number' && Number.isFinite(v);

export function number(v) {
  if (!isNumber(v)) return '–';
  const size = Math.abs(v);
  if (size === 0) return '0';
  if (size >= 1e9) return (v / 1e9).toPrecision(3) + ' G';
  if (size >= 1e6) return (v / 1e6).toPrecision(3) + ' M';
  if (size >= 1e5) return (v / 1e3).toPrecision(3) + ' k';
  if (size >= 1e3) return Math.round(v).toString();
  if (size < 1e-3) return Number(v.toPrecision(2)).toExponential();
  return String(Number(v.toPrecision(3)));
}

export function bytes(v) {
  if (!isNumber(v)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; Math.abs(v) >= 1024 && unit < 4; ++unit) v /= 1024;
  return (v >= 100 || Number.isInteger(v) ? Math.round(v) : v.toPrecision(3)) + ' ' + units[unit];
}

export function seconds(v) {
  if (!isNumber(v)) return '–';
  if (v === 0) return '0 s';
  if (v < 1e-3) return Math.round(v * 1e6) + ' µs';
  if (v < 1) return Number((v * 1e3).toPrecision(3)) + ' ms';
  if (v < 120) return Number(v.toPrecision(3)) + ' s';
  if (v < 7200) return Math.round(v / 60) + ' min';
  const minutes = Math.round(v / 60);
  return minutes < 2880 ? Math.floor(minutes / 60) + ' h ' + String(minutes % 60).padStart(2, '0') + ' min' : (v / 86400).toFixed(1) + ' days';
}

export const percent = (v) => (isNumber(v) ? Number((100 * v).toFixed(1)) + ' %' : '–');

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'onclick') made.addEventListener('click', value);
    else if (key === 'style') Object.assign(made.style, value);
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

export const byId = (id) => document.getElementById(id);

// From red over amber to green; `v` in 0..1, as rewards mostly are.
export function score_colour(v) {
  if (!isNumber(v)) return '#9aa0ac';
  const share = Math.max(0, Math.min(1, v));
  return share < 0.5 ? `hsl(${2 + share * 66} 58% 52%)` : `hsl(${35 + (share - 0.5) * 220} 48% 42%)`;
}

export async function ask(path) {
  const response = await fetch(path, { cache: 'no-store' });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

export const chip = (score) => element('span', { class: 'chip', style: { background: score_colour(score) } }, number(score));
export const fact = (label, value) => element('span', {}, label + ' ', element('b', {}, value));

export function pager(root, page, pages, go) {
  root.replaceChildren();
  if (pages < 2) return;
  const button = (text, target) => {
    const made = element('button', { onclick: () => go(target) }, text);
    made.disabled = target < 0 || target >= pages;
    return made;
  };
  root.append(button('‹', page - 1), `page ${page + 1} of ${pages}`, button('›', page + 1));
}

// Once the typing rests.
export function on_typing(input, act) {
  let timer;
  input.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(act, 200); });
}

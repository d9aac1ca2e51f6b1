// SPDX-License-Identifier: Apache-2.0
// One Dygraph a panel; hover and zoom are shared by all of them.
import { bytes, element, isNumber, number } from './format.js';
import { EXAMPLE, GROUPS, PANELS, panel_of, series_label } from './panels.js';

// Told apart on a light and on a dark ground.
const COLOURS = ['#3b6fd4', '#e0893a', '#3a9d72', '#a05cc0', '#cf5064', '#4ab4cc', '#a58a2c', '#7d8797', '#e27fc0', '#8a5a3c', '#8cc63f',
  '#5b4bd6', '#f0c04a', '#1f7a78', '#b99cf0', '#ff8f78'];
const colour = (i) => COLOURS[i] ?? `hsl(${Math.round(i * 137.5) % 360} ${i % 2 ? 75 : 45}% ${i % 3 ? 55 : 42}%)`;

// Exponential mean without the pull of the start; absent values stay absent.
function smoothed(values, weight) {
  let mean = 0, norm = 0;
  return values.map((v) => {
    if (!isNumber(v)) return v;
    mean = weight * mean + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

export class Charts {
  constructor(root) {
    this.root = root;
    this.panels = new Map();  // title -> {panel, names, graph, ...}
    this.sections = new Map();
    this.smoothing = 0;
    this.hovered = null;
    this.moving = false;
    this.wanted = '';  // a part of the metrics' names
    this.example = null;  // a question among the curves of learning
  }

  clear() {
    for (const it of this.panels.values()) it.graph?.destroy();
    this.panels.clear();
    this.sections.clear();
    this.root.replaceChildren();
  }

  // Draws all rows; adds a panel when a metric is seen for the first time. Returns the number of points drawn. Only while the page shows
  // the curves: a panel without a size would be drawn at a wrong one.
  draw(rows, names) {
    for (const name of names) this.place(name);
    this.show_example(this.example);
    for (const it of this.panels.values())
      it.box.hidden = ![it.panel.title, ...it.names].some((text) => text.toLowerCase().includes(this.wanted));
    for (const grid of this.sections.values()) grid.parentElement.hidden = [...grid.children].every((box) => box.hidden);
    let points = 0;
    for (const it of this.panels.values()) if (!it.box.hidden) points += this.draw_panel(it, rows);
    return points;
  }

  show_example(box) {
    if (this.example !== box) this.example?.remove();
    this.example = box;
    if (!box) return;
    box.hidden = this.wanted !== '';
    if (!box.isConnected) this.insert({ panel: EXAMPLE, box });
  }

  place(name) {
    const panel = panel_of(name);
    if (!panel) return;
    let it = this.panels.get(panel.title);
    if (!it) {
      it = { panel, names: [], hidden: new Set(), graph: null };
      it.legend = element('div', { class: 'legend' });
      it.at = element('span', { class: 'at' });
      it.canvas = element('div', { class: 'canvas' });
      it.box = element('div', { class: 'panel' }, element('h3', {}, panel.title, it.at), it.legend, it.canvas);
      this.panels.set(panel.title, it);
      this.insert(it);
    }
    if (!it.names.includes(name)) {
      it.names.push(name);
      it.graph?.destroy();
      it.graph = null;
    }
  }

  // Panels stand in the order of PANELS, whatever order the metrics came in.
  insert(it) {
    const group = it.panel.group;
    if (!this.sections.has(group)) {
      const grid = element('div', { class: 'grid' });
      const section = element('div', {}, element('h2', {}, group), grid);
      section.dataset.order = GROUPS.indexOf(group);
      const after = [...this.root.children].find((other) => Number(other.dataset.order) > GROUPS.indexOf(group));
      this.root.insertBefore(section, after || null);
      this.sections.set(group, grid);
    }
    const rank = PANELS.indexOf(it.panel);
    it.box.dataset.order = rank < 0 ? PANELS.length : rank;
    const grid = this.sections.get(group);
    grid.insertBefore(it.box, [...grid.children].find((other) => Number(other.dataset.order) > it.box.dataset.order) || null);
  }

  rows_of(it, rows) {
    const columns = it.names.map((name) => {
      const values = rows.map((row) => (isNumber(row[name]) ? row[name] : it.panel.stacked ? 0 : null));
      return this.smoothing && !it.panel.points ? smoothed(values, this.smoothing) : values;
    });
    return rows.map((row, i) => [row.step, ...columns.map((column) => column[i])]);
  }

  draw_panel(it, rows) {
    const data = this.rows_of(it, rows);
    if (!data.length) return 0;
    const few = data.length < 25 || !!it.panel.points;
    it.graph?.resize();  // it may have been hidden meanwhile
    if (it.graph) it.graph.updateOptions({ file: data, drawPoints: few });
    else this.make_graph(it, data, few);
    it.data = data;
    this.show_legend(it, this.hovered);
    return data.reduce((sum, row) => sum + row.slice(1).filter((v) => v !== null).length, 0);
  }

  make_graph(it, data, few) {
    const format = it.panel.format || number;
    const css = getComputedStyle(document.documentElement);
    it.graph = new Dygraph(it.canvas, data, {
      labels: ['step', ...it.names],
      colors: it.names.map((_, i) => colour(i)),
      strokeWidth: 1.6, drawPoints: few, pointSize: 2, highlightCircleSize: 3.5, connectSeparatedPoints: true,
      stackedGraph: !!it.panel.stacked, fillAlpha: 0.45, includeZero: !!it.panel.zero, legend: 'never', labelsKMG2: it.panel.format === bytes,
      gridLineColor: css.getPropertyValue('--grid').trim(), axisLineColor: css.getPropertyValue('--line').trim(),
      gridLineWidth: 1, axisLabelFontSize: 11, xRangePad: 4, yRangePad: 6, animatedZooms: false,
      visibility: it.names.map((name) => !it.hidden.has(name)),
      axes: {
        x: { drawGrid: false, pixelsPerLabel: 70, axisLabelFormatter: (x) => (Number.isInteger(x) ? String(x) : '') },
        y: { axisLabelWidth: 58, pixelsPerLabel: 28, axisLabelFormatter: (y) => format(y) },
      },
      highlightCallback: (_, x) => this.hover(it, x),
      unhighlightCallback: () => this.hover(it, null),
      zoomCallback: (low, high) => this.zoom(it, low, high),
    });
    this.make_legend(it);
  }

  make_legend(it) {
    it.values = it.names.map(() => element('b'));
    it.legend.replaceChildren(...it.names.map((name, i) => {
      const key = element('span', { title: name + ' (click to hide)', onclick: () => {
        if (!it.hidden.delete(name)) it.hidden.add(name);
        key.classList.toggle('off', it.hidden.has(name));
        it.graph.setVisibility(i, !it.hidden.has(name));
      } }, element('i', { style: { background: colour(i) } }), series_label(name), it.values[i]);
      key.classList.toggle('off', it.hidden.has(name));
      return key;
    }));
  }

  // Values at step x, or the newest ones.
  show_legend(it, x) {
    const format = it.panel.format || number;
    let at = it.data.length - 1;
    it.at.textContent = x === null ? '' : 'step ' + x;
    if (x !== null) at = it.data.findIndex((row) => row[0] === x);
    it.values.forEach((value, i) => {
      let row = at;
      if (x === null) while (row > 0 && it.data[row][i + 1] === null) --row;
      value.textContent = row < 0 ? '–' : format(it.data[row][i + 1]);
    });
  }

  hover(from, x) {
    if (this.moving) return;
    this.moving = true;
    this.hovered = x;
    for (const it of this.panels.values()) {
      if (!it.graph) continue;
      if (x === null) it.graph.clearSelection();
      else if (it !== from) it.graph.setSelection(it.data.findIndex((row) => row[0] === x));
      this.show_legend(it, x);
    }
    this.moving = false;
  }

  zoom(from, low, high) {
    const window = from.graph.isZoomed('x') ? [low, high] : null;
    for (const it of this.panels.values()) if (it !== from && it.graph) it.graph.updateOptions({ dateWindow: window });
  }

  resize() {
    for (const it of this.panels.values()) it.graph?.resize();
  }
}

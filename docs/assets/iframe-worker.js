// SPDX-License-Identifier: Apache-2.0
// The search of the site runs in a worker, which browsers refuse to a page that is opened from a folder. There a hidden frame is the worker.
// The theme looks for this class by its name, and for a file of this name, in whose place it would take a script of the network.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inside = frame.contentWindow;
    inside.document.open();
    inside.document.write("<body></body>");
    inside.document.close();
    const load = (script) => new Promise((done, fail) => {
      const element = inside.document.createElement("script");
      Object.assign(element, {src: script, onload: done, onerror: () => fail(new Error(`cannot load ${script}`))});
      inside.document.body.append(element);
    });
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
    inside.importScripts = (...scripts) => scripts.reduce((before, script) => before.then(() => load(script)), Promise.resolve());
    this.inside = inside;
    this.loaded = load(new URL(url, document.baseURI).href);
  }

  postMessage(data) {
    this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
  }

  terminate() {
    this.inside.frameElement.remove();
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;

// SPDX-License-Identifier: Apache-2.0
// Stands for a style element in xterm.js (build.mjs puts it there): the page's content policy refuses text in those.

/** styleElement is an element whose text is a style sheet until it is removed. */
export function styleElement(): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  const el = document.createElement('template');
  Object.defineProperty(el, 'textContent', { set: (css: string) => sheet.replaceSync(css) });
  el.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    Element.prototype.remove.call(el);
  };
  return el;
}

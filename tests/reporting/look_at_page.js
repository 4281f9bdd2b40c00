// What a reader would stumble over on a page, each fault as a line: run inside the page's window.
function faultsOf(frame) {
  const page = frame.contentDocument, faults = new Set();
  const style = element => frame.contentWindow.getComputedStyle(element);
  const root = page.documentElement;
  if (root.scrollWidth > root.clientWidth) faults.add(`page of ${root.scrollWidth} px scrolls sideways`);
  for (const element of page.body.querySelectorAll("*")) {
    const scrolls = ["auto", "scroll"].includes(style(element).overflowX);
    if (!element.closest("svg") && !scrolls && element.clientWidth && element.scrollWidth > element.clientWidth + 1)
      faults.add(`clipped: ${element.tagName} ${element.textContent.trim().slice(0, 40)}`);
  }
  // a word whose letters stand on two lines
  for (const cell of page.querySelectorAll("td, th, dt, dd, figcaption, .headline")) {
    const texts = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[\p{L}\p{N}_.,]+/gu)) {
      const range = page.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (tops.size > 1) faults.add(`broken: ${word[0]}`);
    }
  }
  for (const svg of page.querySelectorAll("svg")) {
    const whole = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.top < whole.top - 1 || box.bottom > whole.bottom + 1)
        faults.add(`cut in a figure: ${text.textContent}`);
    }
  }
  // WCAG 2.1: text is read where its contrast to the background is 4.5 and more
  const luminance = colour => {
    const [r, g, b] = colour.match(/[\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = luminance(style(page.body).backgroundColor);
  for (const element of page.body.querySelectorAll("td, th, p, a, dt, dd, li, code, h1, h2, text")) {
    const ink = luminance(element.closest("svg") ? style(element).fill : style(element).color);
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5) faults.add(`faint (${contrast.toFixed(1)}): ${element.textContent.slice(0, 40)}`);
  }
  return [...faults, `paper ${paper < 0.5 ? "dark" : "light"}, ${root.clientWidth} px`];
}

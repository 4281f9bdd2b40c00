"use strict";
// What is 107? Each curve brings its points as [dim, x, y, words]; a pointer over the plot or a
// number in the field shows the nearest one.
for (const figure of document.querySelectorAll("figure[data-axis]")) {
  const points = JSON.parse(figure.querySelector("script").textContent);
  const [svg, field, shown] = ["svg", "input", "output"].map((name) => figure.querySelector(name));
  const axis = figure.dataset.axis;
  const ring = document.createElementNS(svg.namespaceURI, "circle");
  ring.setAttribute("class", "ring");
  const nearest = (value, column) => points.reduce((best, point) =>
    Math.abs(point[column] - value) < Math.abs(best[column] - value) ? point : best);
  const show = ([d, x, y, words], asked = d) => {
    const other = asked === d ? "" : `${axis} = ${asked} was not measured; the nearest: `;
    shown.textContent = `${other}${axis} = ${d}: ${words}`;
    for (const [name, value] of Object.entries({cx: x, cy: y, r: 6})) ring.setAttribute(name, value);
    svg.append(ring);
  };
  const point = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const found = nearest(at.x, 1);
    field.value = found[0];
    show(found);
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  field.addEventListener("input", () => {
    if (field.value) show(nearest(Number(field.value), 0), Number(field.value));
  });
  figure.querySelector(".ask").hidden = false;
}

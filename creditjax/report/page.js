"use strict";
// Curves: a crosshair follows the pointer or the arrow keys and the caption reads the nearest point out.
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const points = JSON.parse(svg.dataset.points);
  const cross = svg.querySelector(".cross");
  const read = svg.closest("figure").querySelector(".read");
  const rest = read.textContent;
  let at = points.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const [step, value, x, y] = points[at];
    cross.querySelector("line").setAttribute("x1", x);
    cross.querySelector("line").setAttribute("x2", x);
    cross.querySelector("circle").setAttribute("cx", x);
    cross.querySelector("circle").setAttribute("cy", y);
    cross.setAttribute("visibility", "visible");
    read.textContent = `step ${step}: ${value}`;
  };
  const hide = () => {
    cross.setAttribute("visibility", "hidden");
    read.textContent = rest;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    let best = 0;
    points.forEach((point, index) => {
      if (Math.abs(point[2] - x) < Math.abs(points[best][2] - x)) best = index;
    });
    show(best);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(cross.getAttribute("visibility") === "visible" ? at + move : move < 0 ? points.length - 1 : 0);
  });
}
// Rollouts: arrow keys walk over the tokens of the focused one.
for (const rollout of document.querySelectorAll(".rollout")) {
  const tokens = rollout.querySelectorAll(".cj-t");
  let at = -1;
  const mark = (index) => {
    tokens[at]?.classList.remove("cj-on");
    at = index;
    tokens[at]?.classList.add("cj-on");
  };
  rollout.addEventListener("blur", () => mark(-1));
  rollout.addEventListener("keydown", (event) => {
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    mark(Math.max(0, Math.min(tokens.length - 1, next)));
  });
}

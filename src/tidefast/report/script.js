"use strict";
// Reads values out of charts under the pointer or the arrow keys, and hides or shows contestants. The charts are
// drawn already: without this script only those two things are missing.
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const hidden = new Set();

  const node = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const written = (value, unit) => (unit === "percent" ? (100 * value).toFixed(1) + " %" : value.toFixed(3));
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  const nearest = (sorted, wanted) => {
    let low = 0, high = sorted.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low > 0 && wanted - sorted[low - 1] < sorted[low] - wanted ? low - 1 : low;
  };

  const place = (readout, plot, share) => {
    readout.hidden = false;
    const room = plot.clientWidth - readout.offsetWidth;
    const beside = share * plot.clientWidth + (share < 0.5 ? 14 : -14 - readout.offsetWidth);
    readout.style.left = clamp(beside, Math.min(0, room), Math.max(0, room)) + "px";
  };

  const curve = (plot, data, total) => {
    const readout = plot.querySelector(".readout"), cursor = plot.querySelector(".cursor");
    let current = 0;
    const show = (index) => {
      current = clamp(index, 0, data.x.length - 1);
      const share = (data.x[current] - 1) / (total - 1);
      cursor.hidden = false;
      cursor.style.left = 100 * share + "%";
      const rows = [node("b", data.titles ? data.titles[current] : "batch " + data.x[current].toLocaleString("en"))];
      if (data.domains[current]) rows.push(node("em", data.domains[current]));
      for (const one of data.series) {
        const value = one.y[current];
        if (value === null || value === undefined || (data.toggles && hidden.has(one.key))) continue;
        const row = node("div");
        row.append(node("span", undefined, "swatch " + one.slot), node("span", one.label), node("span", written(value, one.unit)));
        rows.push(row);
      }
      readout.replaceChildren(...rows);
      place(readout, plot, share);
    };
    return {
      at: (x) => show(nearest(data.x, 1 + x * (total - 1))),
      move: (dx) => show(current + dx),
      leave: () => { readout.hidden = cursor.hidden = true; },
    };
  };

  const heat = (plot, data) => {
    const readout = plot.querySelector(".readout");
    const bins = data.edges.length - 1, rows = data.shares.length;
    let bin = 0, row = 0;
    const show = (b, r) => {
      bin = clamp(b, 0, bins - 1);
      row = clamp(r, 0, rows - 1);
      const top = data.shares.reduce((best, shares, k) => (shares[bin] > data.shares[best][bin] ? k : best), 0);
      const range = (data.edges[bin] + 1).toLocaleString("en") + "–" + data.edges[bin + 1].toLocaleString("en");
      const said = (k) => data.classes[k] + " " + (data.shares[k][bin] / 10).toFixed(1) + " %";
      readout.replaceChildren(node("b", "batches " + range), node("span", said(row)), node("em", "largest: " + said(top)));
      place(readout, plot, data.edges[bin] / data.total);
    };
    return {
      at: (x, y) => show(Math.max(0, data.edges.findLastIndex((edge) => edge <= x * data.total)), Math.floor(y * rows)),
      move: (dx, dy) => show(bin + dx, row + dy),
      leave: () => { readout.hidden = true; },
    };
  };

  for (const plot of document.querySelectorAll("[data-plot]")) {
    const data = plots[plot.dataset.plot];
    if (!data || (data.x && !data.x.length)) continue;
    const reader = data.edges ? heat(plot, data) : curve(plot, data, Math.max(2, data.total));
    const follow = (event) => {
      const box = plot.getBoundingClientRect();
      reader.at((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", reader.leave);
    plot.addEventListener("blur", reader.leave);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") reader.leave();
      if (!step || (step[1] && !data.edges)) return;
      event.preventDefault();
      reader.move(step[0] * (event.shiftKey ? 10 : 1), step[1]);
    });
  }

  const marks = [...document.querySelectorAll("[data-track]")];
  for (const button of document.querySelectorAll("[data-toggle]")) {
    const key = button.dataset.toggle;
    button.addEventListener("click", () => {
      hidden[hidden.has(key) ? "delete" : "add"](key);
      button.setAttribute("aria-pressed", String(!hidden.has(key)));
      for (const mark of marks) if (mark.dataset.track === key) mark.classList.toggle("off", hidden.has(key));
    });
    const single = (on) => {
      for (const mark of marks) mark.classList.toggle("faded", on && !hidden.has(key) && mark.dataset.track !== key);
    };
    for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => single(true));
    for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => single(false));
  }
})();

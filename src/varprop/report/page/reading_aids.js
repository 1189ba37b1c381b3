"use strict";

// Aids to reading: values of the point nearest to the pointer, tables sorted by a column, where one is in the page.
(() => {
  const NEAR = 28; // pixels
  const tip = document.getElementById("tip");

  function nearest(image, event) {
    const box = image.getBoundingClientRect();
    let best = null;
    for (const [x, y, text] of JSON.parse(image.dataset.tooltips)) {
      const left = box.left + (box.width * x) / 100;
      const top = box.top + (box.height * y) / 100;
      const far = Math.hypot(left - event.clientX, top - event.clientY);
      if (far <= NEAR && (!best || far < best.far)) best = { far, left, top, text };
    }
    return best;
  }

  function show(event) {
    const found = nearest(event.target, event);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = found.text;
    const half = tip.offsetWidth / 2 + 6;
    tip.style.left = `${Math.min(Math.max(found.left, half), document.documentElement.clientWidth - half)}px`;
    tip.style.top = `${found.top}px`;
    tip.classList.toggle("below", found.top < tip.offsetHeight + 24);
  }

  for (const image of document.querySelectorAll("img[data-tooltips]")) {
    image.addEventListener("pointermove", show);
    image.addEventListener("pointerdown", show);
    image.addEventListener("pointerleave", () => (tip.hidden = true));
  }
  document.addEventListener("scroll", () => (tip.hidden = true), { passive: true });

  // Numbers by size, dashes last, words by the alphabet. A line that stands beside another one moves with it.
  const valueOf = (cell) => {
    const number = parseFloat(cell.textContent.replace("−", "-"));
    return Number.isNaN(number) ? null : number;
  };

  function sort(table, column, heading) {
    const rising = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const groups = [];
    for (const line of table.tBodies[0].rows) {
      if (line.className === "aside" && groups.length) groups.at(-1).push(line);
      else groups.push([line]);
    }
    const key = ([line]) => (column ? valueOf(line.cells[column]) : line.cells[0].textContent);
    groups.sort((a, b) => {
      const [one, other] = [key(a), key(b)];
      if (one === null || other === null) return (one === null) - (other === null);
      const order = column ? one - other : one.localeCompare(other, "en", { numeric: true });
      return rising ? order : -order;
    });
    table.tBodies[0].append(...groups.flat());
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, column, heading));
    });
  }

  const links = new Map([...document.querySelectorAll("#contents a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
      const first = [...links.keys()].find((name) => seen.has(name));
      for (const [name, link] of links) {
        if (name === first) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-64px 0px -40% 0px" },
  );
  for (const section of document.querySelectorAll("main > section")) watch.observe(section);
})();

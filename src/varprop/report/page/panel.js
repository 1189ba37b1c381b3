"use strict";

// The page holds, for each run, the steps of a staircase: thresholds with rising held-out coverage and risk. A budget
// selects the last step that meets it; everything shown is then a lookup.
(() => {
  const FEW = 60; // thumbnails before "Show all"
  const SIZE = 56; // pixels of a thumbnail
  const data = JSON.parse(document.getElementById("panel-data").textContent);
  const get = (id) => document.getElementById(id);
  const section = get("operating-point");
  if (!section || !data.experiments.length) return;
  const slider = get("budget");
  const number = get("budget-number");
  const state = { budget: 1, experiment: data.experiments[0], seed: null, method: null, kind: "abstained", all: false };

  const percent = (share, digits) => `${(100 * share).toFixed(digits)} %`;
  const count = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(1));
  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    // On a narrow page rows are laid out as cards, which makes browsers forget that they are a table.
    const role = { tr: "row", td: "cell", th: "rowheader" }[tag];
    if (role) made.setAttribute("role", role);
    return made;
  };
  const fill = (select, values, chosen, titles = values) => {
    select.replaceChildren(...values.map((value, i) => new Option(titles[i], value, false, value === chosen)));
  };

  // The last step whose held-out risk is within the budget; -1 if there is none. Rounding must not refuse a budget
  // that is met exactly, hence the slack.
  function stepFor(run, budget) {
    const limit = budget * (1 + 1e-9) + run.slack;
    let low = 0;
    let high = run.risk.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (run.risk[middle] <= limit) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  const titled = () => state.experiment.methods.find((method) => method.slug === state.method)?.title;
  const runs = () => state.experiment.runs[state.seed] || {};

  function row(method) {
    const line = element("tr");
    line.dataset.method = method.slug;
    const name = element("th", method.title);
    name.scope = "row";
    name.style.setProperty("--series", `var(--${method.role})`);
    line.append(name);
    const run = runs()[method.slug];
    if (!run) return message(line, "no held-out scores were kept");
    const step = stepFor(run, state.budget / 100);
    if (step < 0) {
      return message(line, `cannot be met: the lowest held-out risk is ${percent(run.risk[0], 2)}`);
    }
    const answered = run.answered[step];
    const errors = run.errors[step];
    const risk = answered ? errors / answered : 0;
    const threshold = labelled("threshold", run.threshold[step].toFixed(4));
    const coverage = element("td", undefined, "coverage");
    coverage.append(bar(answered - errors, errors, run.examples), element("span", percent(answered / run.examples, 1)));
    const rate = labelled("risk", answered ? percent(risk, 2) : "–");
    if (risk > state.budget / 100 + 1e-12) {
      const mark = element("span", " ▲", "over");
      mark.title = "above the budget on the test data";
      rate.append(mark);
      rate.dataset.over = "true";
    }
    line.append(threshold, coverage, labelled("errors", count(errors)), rate);
    line.append(labelled("abstained", String(run.examples - answered)));
    return line;
  }

  function labelled(name, text) {
    const cell = element("td", text, `number ${name}`);
    cell.dataset.label = name;
    return cell;
  }

  function message(line, text) {
    const cell = element("td", text, "message");
    cell.colSpan = 5;
    line.append(cell);
    return line;
  }

  function bar(right, wrong, total) {
    const outer = element("span", undefined, "bar");
    outer.setAttribute("aria-hidden", "true");
    for (const [kind, size] of [["right", right], ["wrong", wrong]]) {
      const part = element("i", undefined, kind);
      part.style.width = `${(100 * size) / total}%`;
      outer.append(part);
    }
    return outer;
  }

  function summary() {
    const run = runs()[state.method];
    if (!run) return "";
    const step = stepFor(run, state.budget / 100);
    const budget = `${Number(state.budget.toFixed(4))} %`;
    if (step < 0) return `${titled()} cannot keep a risk of ${budget} on the held-out data at any threshold.`;
    const answered = run.answered[step];
    return (
      `At a risk budget of ${budget}, ${titled()} answers ${answered} of ${run.examples} test examples ` +
      `(${percent(answered / run.examples, 1)}), ${count(run.errors[step])} of them wrong, ` +
      `and abstains on ${run.examples - answered}.`
    );
  }

  function thumbnail(run, i) {
    const { sheet, names } = state.experiment;
    const scale = SIZE / Math.max(sheet.width, sheet.height);
    const called = (label) => names[label] ?? String(label);
    const wrong = run.wrong[i] > 0.5;
    const item = element("li", undefined, wrong ? "wrong" : "right");
    const image = element("span", undefined, "image");
    image.setAttribute("role", "img");
    image.setAttribute("aria-label", `test example ${i}`);
    Object.assign(image.style, {
      width: `${sheet.width * scale}px`,
      height: `${sheet.height * scale}px`,
      backgroundSize: `${sheet.across * sheet.width * scale}px ${sheet.down * sheet.height * scale}px`,
      backgroundPosition: `${-(i % sheet.across) * sheet.width * scale}px ${-Math.floor(i / sheet.across) * sheet.height * scale}px`,
    });
    const said = element("span", `${wrong ? "✗" : "✓"} ${called(run.label[i])}`, "said");
    said.title = "predicted";
    const truth = element("span", wrong ? `is ${called(run.target[i])}` : percent(run.confidence[i], 0), "truth");
    item.title = `example ${i}: predicted ${called(run.label[i])}, true ${called(run.target[i])}, confidence ${run.confidence[i]}`;
    item.append(image, said, truth);
    return item;
  }

  function gallery() {
    const run = runs()[state.method];
    const usable = Boolean(state.experiment.sheet && run && run.step);
    get("gallery").hidden = !usable;
    if (!usable) return;
    const step = stepFor(run, state.budget / 100);
    const abstained = state.kind === "abstained";
    const chosen = run.step
      .map((first, i) => [i, first > step])
      .filter(([i, out]) => (abstained ? out : !out && run.wrong[i] > 0.5))
      .map(([i]) => i)
      .sort((a, b) => run.confidence[a] - run.confidence[b] || a - b);
    const wrong = chosen.filter((i) => run.wrong[i] > 0.5).length;
    const shown = state.all ? chosen : chosen.slice(0, FEW);
    const what = abstained
      ? `are abstained on, least confident first; ${wrong} of these would have been wrong.`
      : "are answered wrongly, least confident first.";
    get("gallery-summary").textContent = `${chosen.length} of the first ${run.step.length} test examples ${what}`;
    get("gallery-list").replaceChildren(...shown.map((i) => thumbnail(run, i)));
    get("gallery-more").hidden = shown.length === chosen.length;
    get("gallery-more").textContent = `Show all ${chosen.length}`;
  }

  function draw() {
    get("points").tBodies[0].replaceChildren(...state.experiment.methods.map(row));
    get("panel-summary").textContent = summary();
    gallery();
  }

  function setBudget(value, from) {
    const valid = Number.isFinite(value) && value >= 0 && value <= 100;
    get("budget-error").textContent = valid ? "" : "Give a percentage from 0 to 100.";
    if (!valid) return;
    state.budget = value;
    state.all = false;
    if (from !== slider) slider.value = String(value);
    if (from !== number) number.value = String(value);
    slider.setAttribute("aria-valuetext", `${value} percent`);
    draw();
  }

  function setExperiment(name) {
    const experiment = data.experiments.find((each) => each.name === name);
    state.experiment = experiment;
    state.all = false;
    const methods = experiment.methods.map((method) => method.slug);
    if (!methods.includes(state.method)) state.method = methods.includes("cvp") ? "cvp" : methods.at(-1);
    if (!experiment.seeds.includes(state.seed)) state.seed = experiment.seeds[0];
    fill(get("seed"), experiment.seeds, state.seed);
    fill(get("gallery-method"), methods, state.method, experiment.methods.map((method) => method.title));
    slider.max = experiment.slider.max;
    slider.step = experiment.slider.step;
    if (experiment.sheet) section.style.setProperty("--sheet", `url(${experiment.sheet.uri})`);
    slider.value = String(state.budget);
    draw();
  }

  slider.addEventListener("input", () => setBudget(slider.valueAsNumber, slider));
  number.addEventListener("input", () => setBudget(number.valueAsNumber, number));
  get("seed").addEventListener("change", (event) => {
    state.seed = event.target.value;
    draw();
  });
  get("gallery-method").addEventListener("change", (event) => {
    state.method = event.target.value;
    state.all = false;
    draw();
  });
  get("gallery-kind").addEventListener("change", (event) => {
    state.kind = event.target.value;
    state.all = false;
    draw();
  });
  get("gallery-more").addEventListener("click", () => {
    state.all = true;
    draw();
  });
  get("experiment").addEventListener("change", (event) => setExperiment(event.target.value));

  const names = data.experiments.map((each) => each.name);
  fill(get("experiment"), names, state.experiment.name, data.experiments.map((each) => each.title));
  get("experiment-label").hidden = data.experiments.length < 2;
  section.hidden = false;
  setExperiment(state.experiment.name);
})();

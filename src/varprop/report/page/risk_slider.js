"use strict";

// The page holds, for each run and risk budget, a threshold and what it does on the test set: all shown is a lookup.
(() => {
  const FEW = 60; // examples before "Show all"
  const SIZE = 56; // pixels of a thumbnail
  const ALL = "all";
  const data = JSON.parse(document.getElementById("operating-points").textContent);
  const get = (id) => document.getElementById(id);
  const section = get("operating-point");
  if (!section || !data.experiments.length) return;
  const slider = get("budget");
  const state = { budget: null, kind: "certified", experiment: null, seed: null, method: null, show: "abstained", all: false };

  const percent = (share, digits) => `${(100 * share).toFixed(digits)} %`;
  const count = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(value < 100 ? 1 : 0));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const error = (values) => {
    const middle = mean(values);
    return Math.sqrt(mean(values.map((value) => (value - middle) ** 2)) / (values.length - 1));
  };
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

  const step = () => state.experiment.budgets.indexOf(state.budget);
  const titled = () => state.experiment.methods.find((method) => method.slug === state.method)?.title;
  const chosenSeeds = () => (state.seed === ALL ? state.experiment.seeds : [state.seed]);
  const runsOf = (slug) => chosenSeeds().map((seed) => state.experiment.runs[seed][slug]).filter(Boolean);

  // What happens at the budget, averaged over the runs; a run without a threshold answers nothing.
  function outcome(runs) {
    const points = runs.map((run) => run[state.kind][step()]);
    const answered = points.map((point) => point?.[1] ?? 0);
    const errors = points.map((point) => point?.[2] ?? 0);
    const risks = answered.map((total, i) => (total ? errors[i] / total : 0));
    const shares = answered.map((total, i) => total / runs[i].examples);
    return {
      none: points.every((point) => !point),
      failed: points.filter((point) => !point).length,
      threshold: runs.length === 1 && points[0] ? points[0][0] : null,
      answered: mean(answered),
      errors: mean(errors),
      risk: mean(risks),
      share: mean(shares),
      spread: runs.length > 1 ? error(shares) : null,
      over: risks.filter((risk) => risk > state.budget / 100 + 1e-12).length,
      examples: mean(runs.map((run) => run.examples)),
      runs: runs.length,
    };
  }

  const refusal = () => (state.kind === "certified" ? "nothing can be promised: too many errors or too few held-out examples" : "no threshold meets it");

  function row(method) {
    const line = element("tr");
    line.dataset.method = method.slug;
    const name = element("th", method.title);
    name.scope = "row";
    line.style.setProperty("--series", `var(--${method.role})`);
    name.style.setProperty("--series", `var(--${method.role})`);
    line.append(name);
    const runs = runsOf(method.slug);
    if (!runs.length) return message(line, "no held-out scores were kept");
    const found = outcome(runs);
    if (found.none) return message(line, refusal());
    const coverage = element("td", undefined, "coverage");
    coverage.append(bar(found.answered - found.errors, found.errors, found.examples));
    const spread = found.spread === null ? "" : ` ± ${(100 * found.spread).toFixed(1)}`;
    coverage.append(element("span", `${(100 * found.share).toFixed(1)}${spread} %`));
    const rate = labelled("risk", found.answered ? percent(found.risk, 2) : "–");
    if (found.over) {
      const mark = element("span", found.runs > 1 ? ` ▲ ${found.over} of ${found.runs}` : " ▲", "over");
      mark.title = "above the budget on the test data";
      rate.append(mark);
      rate.dataset.over = "true";
    }
    const threshold = found.threshold === null ? "–" : found.threshold < -1e8 ? "none" : found.threshold.toFixed(4);
    line.append(labelled("threshold", threshold), coverage, labelled("errors", count(found.errors)), rate);
    line.append(labelled("abstained", count(found.examples - found.answered)));
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
    const runs = runsOf(state.method);
    if (!runs.length) return "";
    const found = outcome(runs);
    const kind = state.kind === "certified" ? "certified risk" : "held-out risk";
    const average = runs.length > 1 ? `, on average over ${runs.length} seeds,` : "";
    const failed = found.failed ? ` No threshold was found with ${found.failed} of ${found.runs} seeds.` : "";
    if (found.none) return `${titled()} finds no threshold with a ${kind} of ${state.budget} %.`;
    return (
      `With a ${kind} of at most ${state.budget} %, ${titled()}${average} answers ${count(found.answered)} of ` +
      `${found.examples} test examples (${percent(found.share, 1)}), ${count(found.errors)} of them wrong, ` +
      `and abstains on ${count(found.examples - found.answered)}.${failed}`
    );
  }

  const called = (label) => state.experiment.names[label] ?? String(label);

  function picture(i) {
    const { sheet } = state.experiment;
    const scale = SIZE / Math.max(sheet.width, sheet.height);
    const image = element("span", undefined, "image");
    image.setAttribute("role", "img");
    image.setAttribute("aria-label", `test example ${i}`);
    Object.assign(image.style, {
      width: `${sheet.width * scale}px`,
      height: `${sheet.height * scale}px`,
      backgroundSize: `${sheet.across * sheet.width * scale}px ${sheet.down * sheet.height * scale}px`,
      backgroundPosition: `${-(i % sheet.across) * sheet.width * scale}px ${-Math.floor(i / sheet.across) * sheet.height * scale}px`,
    });
    return image;
  }

  function example(run, i) {
    const wrong = run.wrong[i] > 0.5;
    const item = element("li", undefined, wrong ? "wrong" : "right");
    const said = element("span", `${wrong ? "✗" : "✓"} ${called(run.label[i])}`, "said");
    said.title = "predicted";
    const truth = element("span", wrong ? `is ${called(run.target[i])}` : percent(run.confidence[i], 0), "truth");
    item.title = `example ${i}: predicted ${called(run.label[i])}, true ${called(run.target[i])}, confidence ${run.confidence[i]}`;
    const text = state.experiment.texts[i];
    item.append(text === undefined ? picture(i) : element("span", text, "text"), said, truth);
    return item;
  }

  function gallery() {
    const run = runsOf(state.method)[0];
    const { sheet, texts } = state.experiment;
    const usable = Boolean((sheet || texts.length) && run && run.rank);
    get("gallery").hidden = !usable;
    if (!usable) return;
    const answered = run[state.kind][step()]?.[1] ?? 0;
    const abstained = state.show === "abstained";
    const chosen = [...run.rank.keys()]
      .filter((i) => (abstained ? run.rank[i] >= answered : run.rank[i] < answered && run.wrong[i] > 0.5))
      .sort((a, b) => run.confidence[a] - run.confidence[b] || a - b);
    const wrong = chosen.filter((i) => run.wrong[i] > 0.5).length;
    const shown = state.all ? chosen : chosen.slice(0, FEW);
    const what = abstained
      ? `are abstained on, least confident first; ${wrong} of these would have been wrong.`
      : "are answered wrongly, least confident first.";
    const where = state.seed === ALL ? ` With seed ${state.experiment.seeds[0]}.` : "";
    get("gallery-summary").textContent = `${chosen.length} of the first ${run.rank.length} test examples ${what}${where}`;
    get("gallery-list").className = texts.length ? "texts" : "thumbnails";
    get("gallery-list").replaceChildren(...shown.map((i) => example(run, i)));
    get("gallery-more").hidden = shown.length === chosen.length;
    get("gallery-more").textContent = `Show all ${chosen.length}`;
  }

  function draw() {
    const budget = `${state.budget} %`;
    get("budget-shown").textContent = budget;
    slider.setAttribute("aria-valuetext", budget);
    get("points").tBodies[0].replaceChildren(...state.experiment.methods.map(row));
    get("points-summary").textContent = summary();
    gallery();
  }

  // Something was chosen: as many examples as at first.
  function choose(changes) {
    Object.assign(state, { all: false }, changes);
    draw();
  }

  function setExperiment(name) {
    const experiment = data.experiments.find((each) => each.name === name);
    state.experiment = experiment;
    const methods = experiment.methods.map((method) => method.slug);
    if (!methods.includes(state.method)) state.method = methods.includes("cvp") ? "cvp" : methods.at(-1);
    const seeds = experiment.seeds.length > 1 ? [ALL, ...experiment.seeds] : experiment.seeds;
    if (!seeds.includes(state.seed)) state.seed = seeds[0];
    fill(get("seed"), seeds, state.seed, seeds.map((seed) => (seed === ALL ? `mean of ${experiment.seeds.length}` : seed)));
    get("seed-label").hidden = seeds.length < 2;
    fill(get("gallery-method"), methods, state.method, experiment.methods.map((method) => method.title));
    if (!experiment.budgets.includes(state.budget)) state.budget = experiment.start;
    slider.max = String(experiment.budgets.length - 1);
    slider.value = String(step());
    if (experiment.sheet) section.style.setProperty("--sheet", `url(${experiment.sheet.uri})`);
    choose({});
  }

  slider.addEventListener("input", () => choose({ budget: state.experiment.budgets[slider.valueAsNumber] }));
  for (const radio of section.querySelectorAll("input[name=kind]")) {
    radio.addEventListener("change", () => choose({ kind: radio.value }));
  }
  get("seed").addEventListener("change", (event) => choose({ seed: event.target.value }));
  get("gallery-method").addEventListener("change", (event) => choose({ method: event.target.value }));
  get("gallery-kind").addEventListener("change", (event) => choose({ show: event.target.value }));
  get("gallery-more").addEventListener("click", () => {
    state.all = true;
    draw();
  });
  get("experiment").addEventListener("change", (event) => setExperiment(event.target.value));

  const names = data.experiments.map((each) => each.name);
  fill(get("experiment"), names, names[0], data.experiments.map((each) => each.title));
  get("experiment-label").hidden = data.experiments.length < 2;
  section.hidden = false;
  setExperiment(names[0]);
})();

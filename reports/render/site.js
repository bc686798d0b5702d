"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs.map(([name, created, commit, dirty, series, passed, red, waived, page, version], index) => (
    { index, name, created, commit, dirty, series, passed, red, waived, page, version }));
  const MARKS = { P: ["●", "good"], F: ["✕", "bad"], N: ["?", "warn"], I: ["!", "warn"], U: ["~", "calm"], "-": ["·", "calm"] };
  const RED = "FNI", ROWS = 50, COLUMNS = 80;
  const flaky = new Set(data.flaky);
  const byId = (id) => document.getElementById(id);
  const node = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const link = (text, address) => {
    const made = node("a", text);
    made.href = address;
    return made;
  };
  const build = (run) => (run.version ? `${run.version} at ` : "") + run.commit.slice(0, 9) + (run.dirty ? " + changes" : "");
  const day = (run) => run.created.slice(0, 16).replace("T", " ");
  const commit = (run) => (data.repository && /^[0-9a-f]{7,}$/.test(run.commit)
    ? link(build(run), `${data.repository}/commit/${run.commit}`) : node("span", build(run)));
  const report = (run, cell) => `pages/${run.name}.html${cell === undefined ? "" : "#cell=" + encodeURIComponent(cell)}`;

  const series = byId("series"), which = byId("which"), search = byId("search");
  let newest = 0;
  for (const name of [...new Set([...runs].reverse().map((run) => run.series))]) {
    series.append(Object.assign(node("option", name), { value: name }));
  }
  const chosen = () => runs.filter((run) => run.series === series.value).reverse();

  const columns = (rows) => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return data.cells.map((_, cell) => cell).filter((cell) => (
      words.every((word) => data.cells[cell].toLowerCase().includes(word))
      && (which.value === "all" || flaky.has(data.cells[cell]) || rows.some((run) => RED.includes(data.states[run.index][cell])))));
  };

  const mark = (run, cell) => {
    const letter = data.states[run.index][cell];
    const [sign, tone] = MARKS[letter];
    const says = `${data.cells[cell]}: ${data.letters[letter] || "not in this run"}, ${build(run)}`;
    const made = node("td", undefined, `mark ${tone}`);
    const sort = run.page && RED.includes(letter) ? link(sign, report(run, data.cells[cell])) : node("span", sign);
    if (sort.href) sort.setAttribute("aria-label", says);
    made.title = says;
    made.append(sort);
    return made;
  };

  const grid = () => {
    const all = chosen();
    newest = Math.max(0, Math.min(newest, Math.floor((all.length - 1) / ROWS) * ROWS));
    const rows = all.slice(newest, newest + ROWS);
    const found = columns(rows), cells = found.slice(0, COLUMNS);
    const head = node("tr");
    for (const name of ["when", "commit", "passed", "red", "report"]) head.append(node("th", name));
    for (const cell of cells) {
      const column = node("th", undefined, "turned");
      const name = link((flaky.has(data.cells[cell]) ? "flaky: " : "") + data.cells[cell], `#cell=${encodeURIComponent(data.cells[cell])}`);
      name.title = data.cells[cell];
      column.append(name);
      head.append(column);
    }
    const body = rows.map((run) => {
      const row = node("tr");
      const sha = node("th"), page = node("td");
      sha.scope = "row";
      sha.append(commit(run));
      page.append(run.page ? link("page", report(run)) : node("span", "none"));
      row.append(node("td", day(run)), sha, node("td", run.passed, "number"),
        node("td", run.red + (run.waived ? ` + ${run.waived} waived` : ""), run.red ? "number bad" : "number"), page,
        ...cells.map((cell) => mark(run, cell)));
      return row;
    });
    byId("grid").tHead.replaceChildren(head);
    byId("grid").tBodies[0].replaceChildren(...body);
    const more = found.length > cells.length ? `the first ${cells.length} of ` : "";
    byId("shown").textContent = `Runs ${newest + 1} to ${newest + rows.length} of ${all.length}; ${more}${found.length} of ${data.cells.length} cells.`;
    byId("newer").disabled = newest === 0;
    byId("older").disabled = newest + ROWS >= all.length;
  };

  const SVG = "http://www.w3.org/2000/svg";
  const shape = (tag, attributes, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const short = (value) => String(Number(value.toPrecision(3)));

  const plot = (title, unit, values, moved) => {
    const points = runs.filter((run) => run.series === series.value && values[run.index] !== null && values[run.index] !== undefined);
    if (points.length < 2) return undefined;
    const [width, height, left, right, top, bottom] = [720, 190, 56, 12, 12, 34];
    const shown = points.map((run) => values[run.index]);
    let [low, high] = [Math.min(...shown), Math.max(...shown)];
    const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
    [low, high] = [low - room, high + room];
    const x = (place) => left + place / (points.length - 1) * (width - left - right);
    const y = (value) => top + (high - value) / (high - low) * (height - top - bottom);
    const last = points[points.length - 1];
    const made = shape("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img",
      "aria-label": `${title}: ${points.length} runs, from ${short(Math.min(...shown))} to ${short(Math.max(...shown))}, last ${short(values[last.index])}${unit}` });
    for (const part of [0, 0.5, 1]) {
      const value = low + room + part * (high - low - 2 * room);
      made.append(shape("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }),
        shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "tick" }, short(value) + unit));
    }
    const at = new Set(moved);
    points.forEach((run, place) => {
      if (at.has(run.index)) made.append(shape("line", { x1: x(place - 0.5), x2: x(place - 0.5), y1: top, y2: height - bottom, class: "moved" }));
    });
    made.append(shape("polyline", { class: "curve series0", points: shown.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
    if (points.length <= 120) {
      points.forEach((run, place) => {
        const dot = shape("circle", { cx: x(place).toFixed(1), cy: y(values[run.index]).toFixed(1), r: 3, class: "mark series0" });
        dot.append(shape("title", {}, `${build(run)}, ${day(run)}: ${short(values[run.index])}${unit}`));
        made.append(dot);
      });
    }
    made.append(shape("text", { x: left, y: height - 10, class: "tick" }, `${day(points[0]).slice(0, 10)} ${build(points[0])}`),
      shape("text", { x: width - right, y: height - 10, "text-anchor": "end", class: "tick" }, `${day(last).slice(0, 10)} ${build(last)}`));
    const figure = node("figure"), caption = node("figcaption");
    caption.append(node("b", title));
    figure.append(caption, made);
    return figure;
  };

  const moved = (cell, measure) => data.changes.filter((row) => row[0] === cell && row[1] === measure).map((row) => row[2]);
  const trends = () => {
    const plots = Object.entries(data.measures).map(([name, values]) => plot(name, "", values, moved("", name))).filter(Boolean);
    byId("trends").replaceChildren(...plots);
    byId("trends").parentNode.hidden = !plots.length;
  };

  let opened = "";
  window.specmatrixCell = ({ cell, measures, red }) => {
    const name = data.cells[cell];
    if (name !== opened) return;
    byId("cell").hidden = false;
    byId("cell-title").textContent = name;
    const box = byId("cell").querySelector(".figures"), list = byId("cell").querySelector(".scroll");
    box.replaceChildren(...Object.entries(measures)
      .map(([measure, values]) => plot(measure, measure === "seconds" ? " s" : "", values, moved(name, measure))).filter(Boolean));
    const table = node("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    ["when", "commit", "gates", "why"].forEach((text) => head.append(node("th", text)));
    for (const [index, gates, message, waived] of [...red].reverse()) {
      const run = runs[index], row = body.insertRow();
      row.append(node("td", day(run)), node("td"), node("td", gates + (waived ? " (waived)" : "")), node("td", message));
      row.cells[1].append(run.page ? link(build(run), report(run, name)) : commit(run));
    }
    list.replaceChildren(red.length ? table : node("p", "Red in no run.", "note"));
    byId("cell").scrollIntoView({ block: "nearest" });
  };
  const open = () => {
    let asked = "";
    try { asked = decodeURIComponent(location.hash).replace(/^#cell=/, ""); } catch { asked = ""; }
    const index = data.cells.indexOf(asked);
    opened = index < 0 ? "" : asked;
    byId("cell").hidden = true;
    if (index < 0) return;
    const script = node("script");
    script.src = `cells/${index}.js`;
    document.body.append(script);
  };

  const draw = () => { grid(); trends(); };
  [which, search].forEach((input) => input.addEventListener("input", grid));
  series.addEventListener("input", () => { newest = 0; draw(); open(); });
  byId("newer").addEventListener("click", () => { newest -= ROWS; grid(); });
  byId("older").addEventListener("click", () => { newest += ROWS; grid(); });
  addEventListener("hashchange", open);
  draw();
  open();
})();

"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent) || {};
  const node = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const short = (value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    event.stopPropagation();
    const text = button.previousElementSibling.textContent;
    const done = () => { button.textContent = "copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done);
    else {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      if (document.execCommand("copy")) done();
    }
  });

  const table = document.getElementById("cells");
  if (!table) return;
  const body = table.tBodies[0];
  let rows = [...body.querySelectorAll("tr[data-row]")];
  const search = document.getElementById("search");
  const states = [...document.querySelectorAll("input[data-state]")];
  const axes = [...document.querySelectorAll("select[data-axis]")];
  const haystack = new Map(rows.map((row) => {
    const cell = data.cells[row.dataset.row];
    const words = [cell.id, row.dataset.axes, cell.state, cell.error || ""];
    for (const gate of cell.gates) if (gate.state !== "PASS") words.push(gate.name, gate.state, gate.message);
    for (const reason of cell.reasons) words.push(reason.because);
    for (const rewrite of cell.rewrites) words.push(rewrite.field, rewrite.reason);
    return [row, words.join(" ").toLowerCase()];
  }));
  const values = new Map(rows.map((row) => [row, data.cells[row.dataset.row].effective]));

  const close = () => body.querySelectorAll("tr.details").forEach((row) => row.remove());

  const filter = () => {
    close();
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const on = new Set(states.filter((box) => box.checked).map((box) => box.dataset.state));
    const wanted = axes.filter((select) => select.value).map((select) => [select.dataset.axis, select.value]);
    axes.forEach((select) => select.classList.toggle("set", Boolean(select.value)));
    let count = 0;
    for (const row of rows) {
      const fits = on.has(row.dataset.state)
        && words.every((word) => haystack.get(row).includes(word))
        && wanted.every(([axis, value]) => values.get(row)[axis] === value);
      row.hidden = !fits;
      count += fits;
    }
    document.getElementById("shown").textContent = `${count} of ${rows.length} cells`;
    const terms = [...wanted.map(([axis, value]) => `${axis}=${value}`), ...words];
    history.replaceState(null, "", terms.length ? "#" + encodeURIComponent(terms.join(" ")) : location.pathname + location.search);
  };

  const sort = (head) => {
    close();
    const column = [...head.parentNode.children].indexOf(head);
    const up = head.dataset.order !== "up";
    head.parentNode.querySelectorAll("th").forEach((each) => delete each.dataset.order);
    head.dataset.order = up ? "up" : "down";
    const key = (row) => row.cells[column].dataset.key;
    const number = head.dataset.sort === "number";
    rows.sort((a, b) => (number ? key(a) - key(b) : key(a).localeCompare(key(b))) * (up ? 1 : -1));
    rows.forEach((row) => body.appendChild(row));
  };

  const grid = (title, pairs, mark) => {
    const pane = node("div");
    if (!pairs.length) return pane;
    pane.append(node("h3", title));
    const made = node("table");
    for (const pair of pairs) {
      const row = made.insertRow();
      pair.forEach((text) => { row.insertCell().textContent = shown(text); });
      if (mark && mark(pair)) row.className = "differs";
    }
    pane.append(made);
    return pane;
  };

  const details = (cell) => {
    const box = node("div");
    const command = node("span", undefined, "command");
    command.append(node("code", cell.repro), node("button", "copy", "copy"));
    command.lastChild.type = "button";
    box.append(node("h3", "Rerun"), command);
    if (cell.error) box.append(node("h3", "Error"), node("code", cell.error));
    if (cell.waived) box.append(node("h3", `Waived until ${cell.waived.expiry}`), node("span", cell.waived.reason));
    const gates = cell.gates.map((gate) => [
      gate.name, gate.state,
      (gate.message ? `${gate.message}; ` : "")
        + Object.entries(gate.numbers).filter(([name, value]) => name !== "outcomes" && value !== "")
        .filter(([, value]) => (!Array.isArray(value) || value.length <= 12) && shown(value).length <= 120)
        .map(([name, value]) => `${name} ${shown(short(value))}`).join(", ")
        + (gate.interval ? ` [${gate.interval.map(short).join(", ")}]` : ""),
    ]);
    box.append(grid("Gates", gates, (row) => row[1] !== "PASS"));
    const panes = node("div", undefined, "panes");
    const differs = ([, asked, ran]) => shown(asked).toLowerCase() !== shown(ran).toLowerCase();
    panes.append(
      grid("Axis, requested, effective", Object.keys(cell.axes).map((axis) => [axis, cell.axes[axis], cell.effective[axis]]), differs),
      grid("Automatic choices", cell.reasons.map((reason) => [reason.field, reason.value, reason.because])),
      grid("Rewrites: field, requested, effective, reason", cell.rewrites.map((r) => [r.field, r.asked, r.got, r.reason])),
      grid("Counters above zero", Object.entries(cell.evidence)),
      grid("Resolved configuration", Object.entries(cell.resolved || {}).filter(([, value]) => !Array.isArray(value))),
    );
    box.append(panes);
    return box;
  };

  const toggle = (row) => {
    const next = row.nextElementSibling;
    if (next && next.classList.contains("details")) { next.remove(); return; }
    const made = node("tr", undefined, "details");
    const cell = made.insertCell();
    cell.colSpan = row.cells.length;
    cell.append(details(data.cells[row.dataset.row]));
    row.after(made);
  };

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-row]");
    if (row && !getSelection().toString()) toggle(row);
  });
  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("tr[data-row]")) toggle(event.target);
  });
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (head) sort(head);
  });
  [search, ...states, ...axes].forEach((input) => input.addEventListener("input", filter));
  document.getElementById("clear").addEventListener("click", () => {
    search.value = "";
    states.forEach((box) => { box.checked = true; });
    axes.forEach((select) => { select.value = ""; });
    filter();
  });
  let wanted = "";
  try { wanted = decodeURIComponent(location.hash.slice(1)); } catch { wanted = ""; }
  for (const term of wanted.split(" ").filter(Boolean)) {
    const [axis, value] = term.split("=");
    const select = axes.find((each) => each.dataset.axis === axis);
    if (select && value) select.value = value;
    else search.value = `${search.value} ${term}`.trim();
  }
  filter();
})();

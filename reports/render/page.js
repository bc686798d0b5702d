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

  // Sorting by the button of a column's head; aria-sort says how.
  const sorting = (table, sorted) => table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th[data-sort]");
    if (!head) return;
    const up = head.getAttribute("aria-sort") !== "ascending";
    head.parentNode.querySelectorAll("th[data-sort]").forEach((each) => each.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const column = [...head.parentNode.children].indexOf(head);
    const key = (row) => row.cells[column].dataset.key;
    const number = head.dataset.sort === "number";
    sorted((a, b) => (number ? key(a) - key(b) : key(a).localeCompare(key(b))) * (up ? 1 : -1));
  });
  const asked = () => {
    try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
  };
  const linked = () => (asked().startsWith("cell=") ? asked().slice(5) : "");
  const search = document.getElementById("search");
  const states = [...document.querySelectorAll("input[data-state]")];
  const words = () => search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const on = () => new Set(states.filter((box) => box.checked).map((box) => box.dataset.state));

  const changes = document.getElementById("changes");
  if (changes) {
    const rows = [...changes.querySelectorAll("tr[data-state]")];
    const groups = [...changes.tBodies];
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const filter = () => {
      const [wanted, checked] = [words(), on()];
      rows.forEach((row) => { row.hidden = !checked.has(row.dataset.state) || !wanted.every((word) => texts.get(row).includes(word)); });
      groups.forEach((group) => { group.hidden = ![...group.rows].some((row) => row.dataset.state && !row.hidden); });
      document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} cells`;
    };
    sorting(changes, (order) => {
      changes.querySelectorAll("tr:not([data-state]) > .cause").forEach((cause) => cause.parentNode.remove());
      groups.slice(1).forEach((group) => group.remove());
      groups.length = 1;
      groups[0].append(...rows.sort(order));
      filter();
    });
    [search, ...states].forEach((input) => input.addEventListener("input", filter));
    document.getElementById("clear").addEventListener("click", () => {
      search.value = "";
      states.forEach((box) => { box.checked = true; });
      filter();
    });
    const show = () => {
      rows.forEach((row) => row.classList.toggle("linked", row.dataset.cell === linked()));
      const row = rows.find((each) => each.classList.contains("linked"));
      if (row) row.scrollIntoView({ block: "center" });
    };
    addEventListener("hashchange", show);
    show();
  }

  const table = document.getElementById("cells");
  if (!table) return;
  const body = table.tBodies[0];
  let rows = [...body.querySelectorAll("tr[data-row]")];
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
    const [typed, checked] = [words(), on()];
    const wanted = axes.filter((select) => select.value).map((select) => [select.dataset.axis, select.value]);
    axes.forEach((select) => select.classList.toggle("set", Boolean(select.value)));
    let count = 0;
    for (const row of rows) {
      const fits = checked.has(row.dataset.state)
        && typed.every((word) => haystack.get(row).includes(word))
        && wanted.every(([axis, value]) => values.get(row)[axis] === value);
      row.hidden = !fits;
      count += fits;
    }
    document.getElementById("shown").textContent = `${count} of ${rows.length} cells`;
    const terms = [...wanted.map(([axis, value]) => `${axis}=${value}`), ...typed];
    if (terms.length || !linked()) history.replaceState(null, "", terms.length ? "#" + encodeURIComponent(terms.join(" ")) : location.pathname + location.search);
  };

  sorting(table, (order) => {
    close();
    body.append(...rows.sort(order));
  });

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
    const code = node("code");
    for (const word of cell.repro.split(/( )/)) code.append(word.startsWith("--") ? node("span", word, "option") : word);
    command.append(code, node("button", "copy", "copy"));
    command.lastChild.type = "button";
    box.append(node("h3", "Rerun"), command);
    if (cell.error) box.append(node("h3", "Error"), node("pre", cell.error, "said"));
    if (cell.waived) box.append(
      node("h3", `Waived until ${cell.waived.expiry}`),
      node("span", [cell.waived.reason, cell.waived.issue].filter(Boolean).join("; ")));
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
    const row = !event.target.closest("a") && event.target.closest("tr[data-row]");
    if (row && !getSelection().toString()) toggle(row);
  });
  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("tr[data-row]")) toggle(event.target);
  });
  [search, ...states, ...axes].forEach((input) => input.addEventListener("input", filter));
  document.getElementById("clear").addEventListener("click", () => {
    search.value = "";
    states.forEach((box) => { box.checked = true; });
    axes.forEach((select) => { select.value = ""; });
    filter();
  });
  for (const term of (linked() ? "" : asked()).split(" ").filter(Boolean)) {
    const [axis, value] = term.split("=");
    const select = axes.find((each) => each.dataset.axis === axis);
    if (select && value) select.value = value;
    else search.value = `${search.value} ${term}`.trim();
  }
  filter();
  const show = () => {
    const row = linked() && rows.find((each) => data.cells[each.dataset.row].id === linked());
    if (!row) return;
    close();
    row.hidden = false;
    toggle(row);
    row.scrollIntoView({ block: "start" });
  };
  addEventListener("hashchange", show);
  show();
})();

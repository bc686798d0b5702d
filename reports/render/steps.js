"use strict";
(() => {
  const { events, at, crashed } = JSON.parse(document.getElementById("data").textContent);
  const stage = document.getElementById("stage");
  const range = document.getElementById("at");
  const only = document.getElementById("only");
  const moment = document.getElementById("moment");
  if (!events.length) { document.querySelector(".controls").hidden = true; return; }
  const make = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  // As Python shows a text.
  const quoted = ({ text }) => {
    const inner = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
    return text.includes("'") && !text.includes('"') ? `"${inner}"` : `'${inner.replaceAll("'", "\\'")}'`;
  };
  const names = [...new Set(events.flatMap((event) => event.rows.map((row) => row.request)))];
  for (const name of names) only.append(make("option", name));
  range.max = events.length - 1;

  // The launch of the step that yielded the first wrong token; the last event before an error.
  const broken = () => {
    if (!at) return crashed ? events.length - 1 : 0;
    const holds = (row) => row.request === at.request && row.start !== undefined && row.start !== null
      && row.start <= at.token && at.token < row.start + (row.tokens || []).length;
    const found = events.find((event) => event.rows.some(holds));
    return found ? Math.max(0, events.findIndex((event) => event.step === found.step && event.event === "launch")) : 0;
  };

  const branch = (nodes, parent) => {
    const list = make("ul", undefined, parent < 0 ? "tree" : "");
    nodes.forEach((node, index) => {
      if (node.parent !== parent) return;
      const item = make("li", undefined, node.accepted ? "accepted" : "");
      item.append(make("code", quoted(node.token)), " ",
        make("small", `target draws ${quoted(node.draw)}, margin ${node.margin.toFixed(2)}`), branch(nodes, index));
      list.append(item);
    });
    return list;
  };

  const table = (heads, rows) => {
    const scroll = make("div", undefined, "scroll");
    const made = make("table");
    const head = made.createTHead().insertRow();
    heads.forEach((text) => head.append(make("th", text)));
    const body = made.createTBody();
    for (const [texts, chosen] of rows) {
      const row = body.insertRow();
      if (chosen) row.className = "chosen";
      texts.forEach((text) => { row.insertCell().textContent = text; });
    }
    scroll.append(made);
    return scroll;
  };

  const show = (index) => {
    const event = events[index];
    range.value = index;
    moment.textContent = `event ${index + 1} of ${events.length}: step ${event.step}, ${event.prefill ? "prefill" : "verify round"}`;
    const phases = make("p");
    for (const phase of ["schedule", "launch", "resolve"]) {
      phases.append(make("span", phase, phase === event.event ? "phase now" : "phase"), " ");
    }
    const left = `steps in flight: ${event.in_flight || 0}; pages: ${event.free || 0} free, ${event.cached || 0} cached`;
    phases.append(left, (event.waiting || []).length ? `; waiting: ${event.waiting.join(", ")}` : "");
    const rows = event.rows.filter((row) => !only.value || row.request === only.value);
    const cells = rows.map((row) => [[
      row.request, row.width, (row.tokens || []).map(quoted).join(" "), row.outcome || "", row.committed || 0,
      (row.in_flight || []).join(" + "), row.pages || "", row.note || "",
    ], at && row.request === at.request]);
    const lanes = make("div", undefined, "lanes");
    for (const row of rows.filter((each) => (each.tree || []).length)) {
      const lane = make("div");
      lane.append(make("h3", `draft of ${row.request}`), branch(row.tree, -1));
      lanes.append(lane);
    }
    const journal = (event.journal || []).filter((line) => !only.value || line.startsWith(`${only.value}: `));
    const ledger = make("div", undefined, "ask");
    ledger.append(make("h3", "journal since the event before"), make("pre", journal.join("\n") || "no entry"));
    stage.replaceChildren(phases, table(
      ["request", "width", "tokens", "outcome", "committed", "in flight", "pages", "note"], cells), lanes, ledger);
  };

  const go = {
    first: () => 0,
    back: () => Math.max(0, Number(range.value) - 1),
    next: () => Math.min(events.length - 1, Number(range.value) + 1),
    last: () => events.length - 1,
    break: broken,
  };
  const keys = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last", b: "break", B: "break" };
  document.addEventListener("keydown", (event) => {
    const name = keys[event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey || event.target === only) return;
    event.preventDefault();
    show(go[name]());
  });
  document.querySelector(".controls").addEventListener("click", (event) => {
    const name = event.target.dataset.go;
    if (name) show(go[name]());
  });
  range.addEventListener("input", () => show(Number(range.value)));
  only.addEventListener("change", () => show(Number(range.value)));
  show(broken());
})();

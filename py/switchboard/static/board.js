// The board, live: regions are replaced as the stream sends them, times count on, cords are drawn.
// Nothing here is needed to read the board or to act on it.
"use strict";
(() => {
  const body = document.body;
  let skew = 0; // what the server's clock is ahead of ours
  const setClock = (text) => { const at = Date.parse(text); if (at) skew = at - Date.now(); };
  if (body.dataset.now) setClock(body.dataset.now);

  // ---- times
  const duration = (seconds) => {
    const s = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s % 3600 / 60))} m`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
  };
  const elapsed = (seconds) => { // coarse: what lies behind need not tick
    const s = Math.max(0, Math.floor(seconds));
    if (s < 10) return "just now";
    if (s < 60) return `${Math.floor(s / 10) * 10} s ago`;
    if (s < 3600) return `${Math.floor(s / 60)} m ago`;
    return s < 86400 ? `${duration(s)} ago` : `${Math.floor(s / 86400)} d ago`;
  };
  const count = (root) => {
    const now = Date.now() + skew;
    for (const el of root.querySelectorAll("time[data-t]")) {
      const left = (Date.parse(el.dateTime) - now) / 1000, d = el.dataset;
      const text = d.t === "ago" ? elapsed(-left) : left > 0 ? d.before + duration(left) : d.over;
      if (el.textContent !== text) el.textContent = text;
      if (!el.title) el.title = el.dateTime.slice(0, 19).replace("T", " ") + " UTC";
      if (d.t === "left") el.classList.toggle("lapsed", left <= 0);
    }
    for (const el of root.querySelectorAll("progress[data-end]"))
      el.value = Math.max(0, Math.min(el.max, (Date.parse(el.dataset.end) - now) / 1000));
  };

  // ---- replacing a region: its elements stay where they are, so that focus, what is typed, what is open, and the scroll stay
  const key = (n) => n.nodeType === 1 ? n.id || n.dataset.key || "" : "";
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  const KEPT = new Set(["open", "value", "checked", "title"]); // what the reader or this script has set
  const flash = (el) => { el.classList.remove("changed"); void el.offsetWidth; el.classList.add("changed"); };
  const morph = (old, next) => {
    if (old.nodeType !== 1) { if (old.data !== next.data) old.data = next.data; return; }
    if (old.classList.contains("drawn")) return;
    const state = old.dataset.state !== undefined ? old.dataset.state : old.parentNode.className === "lamps" ? old.classList[0] : undefined;
    for (const { name } of [...old.attributes])
      if (!next.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
    for (const { name, value } of next.attributes)
      if (old.getAttribute(name) !== value && !(KEPT.has(name) && /^(DETAILS|INPUT|SELECT|TEXTAREA|OPTION)$/.test(old.nodeName))) old.setAttribute(name, value);
    const now = old.dataset.state !== undefined ? old.dataset.state : old.parentNode.className === "lamps" ? old.classList[0] : undefined;
    if (state !== now) flash(old);
    if (old.dataset.t || old.nodeName === "TEXTAREA" || old.nodeName === "SELECT") return;
    const keyed = new Map();
    for (const n of old.childNodes) if (key(n)) keyed.set(key(n), n);
    let at = old.firstChild;
    for (const n of [...next.childNodes]) {
      const k = key(n);
      let match = null;
      if (k) { match = keyed.get(k) || null; if (match && !alike(match, n)) match = null; }
      else { while (at && (at.nodeType === 1 && at.classList.contains("drawn"))) at = at.nextSibling; if (at && !key(at) && alike(at, n)) match = at; }
      if (match) {
        if (match === at) at = at.nextSibling;
        else old.insertBefore(match, at); // moving loses focus: only what has changed its place moves
        if (k) keyed.delete(k);
        morph(match, n);
      } else {
        const made = document.importNode(n, true);
        old.insertBefore(made, at);
        if (k && made.nodeType === 1) flash(made);
      }
    }
    while (at) { const gone = at; at = at.nextSibling; if (!(gone.nodeType === 1 && gone.classList.contains("drawn"))) gone.remove(); }
  };
  const csrf = document.querySelector("meta[name=csrf]");
  const replace = ({ id, html }) => {
    const old = [...document.querySelectorAll("[data-live]")].find((el) => el.dataset.live === id);
    if (!old) return;
    const next = new DOMParser().parseFromString(html, "text/html").querySelector("[data-live]");
    if (!next) return;
    for (const el of next.querySelectorAll("input[name=csrf]")) el.setAttribute("value", csrf ? csrf.content : "");
    const focus = document.activeElement;
    morph(old, next);
    if (focus && focus !== document.activeElement && document.contains(focus)) focus.focus({ preventScroll: true });
    count(old);
    draw();
  };

  // ---- cords: from the jack of an endpoint down the edge of its board, along the strip, to the lamp that it holds
  const SVG = "http://www.w3.org/2000/svg";
  let drawing = 0;
  const draw = () => { if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; document.querySelectorAll(".position").forEach(drawCords); }); };
  const drawCords = (position) => {
    let svg = position.querySelector("svg.drawn");
    const box = position.getBoundingClientRect(), paths = [];
    const j = position.querySelector(".jack").getBoundingClientRect();
    const jx = j.x + j.width / 2 - box.x, jy = j.y + j.height / 2 - box.y;
    const strips = [...position.querySelectorAll(".strip")].map((strip) => [...strip.querySelectorAll("i.connected")]).filter((held) => held.length);
    strips.forEach((held, n) => {
      const side = strips.length > 1 ? (.5 - n / (strips.length - 1)) * Math.min(18, 4 * (strips.length - 1)) : 0; // the longest hangs outermost
      for (const lamp of held) {
        const l = lamp.getBoundingClientRect();
        const x = jx + side, y = l.y + l.height / 2 - box.y, to = l.x + l.width / 2 - box.x, r = 16;
        paths.push([lamp.id, `M${jx} ${jy}C${jx} ${jy + 14} ${x} ${jy + 14} ${x} ${jy + 26}V${y - r}C${x} ${y + 3} ${x + 6} ${y + 4} ${x + r + 6} ${y + 3}S${to - 10} ${y + 2} ${to} ${y}`]);
      }
    });
    if (!paths.length) { if (svg) svg.remove(); return; }
    if (!svg) { svg = document.createElementNS(SVG, "svg"); svg.setAttribute("class", "drawn"); svg.setAttribute("aria-hidden", "true"); position.prepend(svg); }
    svg.replaceChildren(...paths.map(([id, d]) => { const path = document.createElementNS(SVG, "path"); path.setAttribute("d", d); path.dataset.todo = id; return path; }));
  };
  const near = (event, on) => {
    const at = event.target.closest && event.target.closest(".cord[data-todo], .lamps i");
    if (at) for (const path of document.querySelectorAll("svg.drawn path")) path.classList.toggle("near", on && path.dataset.todo === (at.dataset.todo || at.id));
  };
  for (const [type, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) document.addEventListener(type, (e) => near(e, on));
  document.addEventListener("click", (e) => { if (e.target.matches(".lamps i[id]")) location.href = "/todos/" + e.target.id; });
  document.addEventListener("animationend", (e) => e.target.classList.remove("changed"));
  addEventListener("resize", draw);

  // ---- the stream
  const wire = document.getElementById("wire");
  const say = (text) => { if (wire && wire.textContent !== text) wire.textContent = text; };
  let source = null, heard = 0, wait = 1000, timer = 0;
  const lost = () => {
    if (source) source.close();
    source = null;
    say("Connection lost, reconnecting. What you see may be old.");
    clearTimeout(timer);
    timer = setTimeout(connect, wait);
    wait = Math.min(wait * 2, 30000);
  };
  const connect = () => {
    clearTimeout(timer);
    if (source || document.hidden) return;
    heard = Date.now();
    source = new EventSource(body.dataset.events);
    const on = (type, f) => source.addEventListener(type, (e) => { heard = Date.now(); f(e.data ? JSON.parse(e.data) : {}); });
    source.onopen = () => { heard = Date.now(); };
    source.onerror = lost;
    on("hello", (d) => { wait = 1000; say(""); setClock(d.now); });
    on("fragment", replace);
    on("alive", () => {});
    on("gone", () => { source.close(); location.reload(); });
  };

  count(document);
  draw();
  setInterval(() => { if (!document.hidden) count(document); if (source && Date.now() - heard > 40000) lost(); }, 1000);
  if (body.dataset.events && "EventSource" in window) {
    document.addEventListener("visibilitychange", () => { if (!document.hidden) { count(document); connect(); } else if (source) { source.close(); source = null; } }); // nobody looks
    addEventListener("pagehide", () => { if (source) source.close(); source = null; });
    addEventListener("pageshow", (e) => { if (e.persisted) connect(); });
    connect();
  }
})();

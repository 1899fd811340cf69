/* The live tail: rows for streams as they are stored. It follows while the page is seen. */
"use strict";

(() => {
  const root = document.getElementById("enode-tail");
  if (!root) return;
  const MOST = Number(root.dataset.most);
  const AGAIN = 5000; // milliseconds until the page connects again after the browser has given up
  const PATIENCE = 15000; // milliseconds without a connection that are no trouble
  const body = root.querySelector("tbody");
  const state = root.querySelector(".enode-tail-state");
  const button = root.querySelector("button");
  const columns = root.querySelectorAll("thead th").length;
  let source = null;
  let cursor = ""; // where to go on
  let waiting = []; // rows that came during a pause, the newest last
  let isPaused = false;
  let leftAt = null; // when the page was hidden
  let trouble = null; // a timer

  const html = (name, className, ...content) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...content);
    return made;
  };

  const clock = () => new Date().toLocaleTimeString("en-GB");

  function row(stream) {
    const link = html("a", "enode-id", stream.id);
    link.href = stream.url;
    const made = html("tr", "",
      html("td", "enode-time", stream.time),
      html("td", "", stream.type, html("br"), link),
      html("td", "", stream.version === null ? "refused" : String(stream.version)),
      html("td", "", stream.command));
    if (columns > 4) made.append(html("td", "", ...(stream.events || []).map(event), stream.trouble || ""));
    return made;
  }

  function event(one) {
    return html("div", "enode-tail-event", html("b", "", one.name), " ", html("span", "enode-text", one.text));
  }

  /* A line instead of streams that were not followed. */
  function gap(text) {
    const cell = html("td", "enode-tail-gap", text);
    cell.colSpan = columns;
    return html("tr", "", cell);
  }

  function add(made) {
    if (isPaused) {
      waiting.push(made);
      waiting = waiting.slice(-MOST);
    } else {
      body.prepend(made);
      while (body.rows.length > MOST) body.lastElementChild.remove();
    }
    say();
  }

  function say(failure) {
    state.classList.toggle("enode-tail-trouble", Boolean(failure));
    const text = failure || (isPaused ? `Paused; ${waiting.length} waiting` : body.rows.length ? "Following" : "Following; nothing was stored yet");
    if (state.textContent !== text) state.textContent = text; // or a screen reader repeats it
  }

  /* A short loss is none: each response ends after a while, and the browser comes again. */
  function lost() {
    trouble ??= setTimeout(() => say("The server sends nothing: it is away, or you are signed out. Trying again."), PATIENCE);
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(again, AGAIN);
  }

  function again() {
    if (!source || source.readyState !== EventSource.CLOSED) return;
    if (!cursor) add(gap(`Connected again at ${clock()}; the list has what was stored before.`));
    follow();
  }

  function follow() {
    const url = new URL(root.dataset.feed, location);
    if (cursor) url.searchParams.set("cursor", cursor);
    source = new EventSource(url);
    source.addEventListener("open", () => {
      clearTimeout(trouble);
      trouble = null;
      say();
    });
    source.addEventListener("error", lost);
    source.addEventListener("stream", (message) => {
      cursor = message.lastEventId;
      add(row(JSON.parse(message.data)));
    });
  }

  function leave() {
    clearTimeout(trouble);
    trouble = null;
    if (source) source.close();
    source = null;
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    const rows = isPaused ? [] : waiting.splice(0);
    rows.forEach(add);
    say();
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      leave();
      leftAt = clock();
    } else if (!source) {
      cursor = "";
      if (leftAt) add(gap(`Not followed from ${leftAt} to ${clock()}, while the page was hidden.`));
      follow();
    }
  });

  if (!document.hidden) follow();
})();

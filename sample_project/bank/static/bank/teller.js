// Sends forms to the bank's API, so that an error leaves the page as it is. What got no answer is sent again with the
// same Idempotency-Key, and done once; what was answered, or is another amount, has another key.
"use strict";

const MESSAGE = "teller-message";

function show(form, texts) {
  form.querySelector(".errorlist")?.remove();
  const list = document.createElement("ul");
  list.className = "errorlist";
  list.setAttribute("role", "alert");
  for (const text of texts) list.appendChild(document.createElement("li")).textContent = text;
  form.prepend(list);
}

function texts(answer) {
  if (answer === null || typeof answer !== "object") return ["That did not work. Send it again."];
  return "detail" in answer ? [answer.detail] : Object.values(answer).flat();
}

const open = new Map(); // what was sent without an answer, by form: its body and its key
let sent = 0;

function keyOf(form, id, body) {
  if (open.get(form)?.body !== body) open.set(form, { body, key: `${id.split(":")[0]}-${sent++}` });
  return open.get(form).key;
}

async function send(form) {
  const fields = Object.fromEntries(new FormData(form));
  const { csrfmiddlewaretoken: token, command_id: id, ...content } = fields;
  const body = JSON.stringify(content);
  const response = await fetch(form.dataset.api, {
    method: "POST",
    headers: {
      "Accept": "application/json",
      "Content-Type": "application/json",
      "Idempotency-Key": keyOf(form, id, body),
      "X-CSRFToken": token,
    },
    body,
  });
  if (response.status < 500) open.delete(form);
  if (response.ok) {
    sessionStorage.setItem(MESSAGE, form.dataset.done);
    location.assign(form.querySelector("a").href);
  } else {
    show(form, texts(await response.json().catch(() => null)));
  }
}

// A disabled button would lose the focus, so it is only said to be one.
function wait(form, isWaiting) {
  form.setAttribute("aria-busy", isWaiting);
  form.querySelector("button").setAttribute("aria-disabled", isWaiting);
  form.querySelector(".waiting").textContent = isWaiting ? "The bank is at it …" : "";
  if (isWaiting) form.querySelector(".errorlist")?.remove();
}

for (const form of document.querySelectorAll("form[data-api]")) {
  const waiting = document.createElement("p");
  waiting.className = "waiting";
  waiting.setAttribute("role", "status");
  form.append(waiting);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (form.getAttribute("aria-busy") === "true") return;
    wait(form, true);
    try {
      await send(form);
    } catch {
      show(form, ["The bank cannot be reached. Send it again: it is done once."]);
    } finally {
      wait(form, false);
    }
  });
}

const message = sessionStorage.getItem(MESSAGE);
if (message !== null) {
  sessionStorage.removeItem(MESSAGE);
  const shown = document.createElement("p");
  shown.className = "message";
  shown.setAttribute("role", "status");
  shown.textContent = message;
  document.querySelector("main").prepend(shown);
}

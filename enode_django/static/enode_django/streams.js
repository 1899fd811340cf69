/* The page of an aggregate. The slider shows the state at each place it comes to, and where it rests the difference, the
   causation and the address follow; without this the form does it. */
"use strict";

(() => {
  const slider = document.querySelector(".enode-slider");
  if (!slider) return;
  const version = document.getElementById("enode-version");
  const trouble = document.getElementById("enode-trouble");
  const table = document.querySelector("#enode-state tbody");
  const PAUSE = 80, REST = 300; // milliseconds without a move before the server is asked for the state, for the rest
  const FOLLOWING = ["difference", "causation"];
  let timer;
  let resting;
  let asked = new AbortController();
  let following = new AbortController();

  slider.addEventListener("input", () => {
    version.textContent = slider.value;
    clearTimeout(timer);
    timer = setTimeout(show, PAUSE, slider.value);
    clearTimeout(resting);
    following.abort();
    resting = setTimeout(follow, REST, slider.value);
  });

  async function follow(wanted) {
    following = new AbortController();
    const url = new URL(location);
    url.searchParams.set("version", wanted);
    for (const name of ["command", "other", "below"]) url.searchParams.delete(name);
    url.hash = "state";
    try {
      const response = await fetch(url, { signal: following.signal });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      for (const id of FOLLOWING) document.getElementById(id)?.replaceWith(page.getElementById(id) ?? "");
      history.replaceState(null, "", url);
    } catch (error) {
      if (error.name !== "AbortError") tell("the page could not be loaded; reload it to try again");
    }
  }

  async function show(wanted) {
    asked.abort();
    asked = new AbortController();
    try {
      const response = await fetch(`${slider.dataset.stateUrl}?version=${wanted}`, { signal: asked.signal });
      const answer = await response.json();
      tell(answer.error || "");
      table.replaceChildren(...(answer.lines || []).map(row));
    } catch (error) {
      if (error.name === "AbortError") return;
      tell("the state could not be loaded; reload the page to try again");
      table.replaceChildren();
    }
  }

  function tell(text) {
    trouble.textContent = text;
    trouble.hidden = !text;
  }

  function row([path, text]) {
    const line = document.createElement("tr");
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = path;
    const value = document.createElement("span");
    value.className = "enode-text";
    value.textContent = text;
    const cell = document.createElement("td");
    cell.append(value);
    line.append(name, cell);
    return line;
  }
})();

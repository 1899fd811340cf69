/* The page of an aggregate. The slider shows the state at each place it comes to; without this the form does it. The
   picture begins where the command stands that was asked for. */
"use strict";

(() => {
  const focus = document.querySelector(".enode-focus rect");
  if (focus) focus.closest(".enode-scroll").scrollLeft = focus.x.baseVal.value - 24;
})();

(() => {
  const slider = document.querySelector(".enode-slider");
  if (!slider) return;
  const version = document.getElementById("enode-version");
  const trouble = document.getElementById("enode-trouble");
  const table = document.querySelector("#enode-state tbody");
  const PAUSE = 80; // milliseconds without a move before the server is asked
  let timer;
  let asked = new AbortController();

  slider.addEventListener("input", () => {
    version.textContent = slider.value;
    clearTimeout(timer);
    timer = setTimeout(show, PAUSE, slider.value);
  });

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

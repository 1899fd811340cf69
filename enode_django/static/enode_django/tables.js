// Gives each cell of a list the name of its column, which narrow screens show beside it: a row is a card there.
"use strict";
{
  const CELLS = { TABLE: "table", TBODY: "rowgroup", THEAD: "rowgroup", TR: "row", TH: "rowheader", TD: "cell" };

  function label(table) {
    const names = [...table.querySelectorAll("thead th")].map((cell) =>
      (cell.querySelector(".text") ?? cell).textContent.trim(),
    );
    table.classList.add("enode-cards");
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, place) => {
        if (names[place]) cell.dataset.label = names[place];
      });
    }
    // A table whose parts are shown as blocks is a table to screen readers only if each part says so.
    for (const part of [table, ...table.querySelectorAll("thead, tbody, tr, th, td")]) {
      part.setAttribute("role", part.closest("thead") && part.tagName === "TH" ? "columnheader" : CELLS[part.tagName]);
    }
  }

  addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("#result_list, .enode-wide table").forEach(label);
  });
}

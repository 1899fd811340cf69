// Keeps what pages say about running jobs up to date. It asks while the page is seen and something may change.
"use strict";
{
  const EVERY = 2000;

  const watched = () => [...document.querySelectorAll("[data-job]")];
  const notice = () => document.querySelector("[data-newest]");

  /* Whether a reload would take something from the user: a selection, or what is being typed. */
  const isBusy = () =>
    document.querySelector("input.action-select:checked") !== null ||
    ["INPUT", "SELECT"].includes(document.activeElement.tagName);

  async function ask() {
    const cells = watched();
    const news = notice();
    const first = cells[0] || news;
    if (!first) {
      return false;
    }
    const ids = [...new Set(cells.map((cell) => cell.dataset.job))];
    const query = new URLSearchParams({ ids: ids.join(","), newest: news ? news.dataset.newest : "" });
    const answer = await fetch(`${first.dataset.url}?${query}`, { headers: { Accept: "application/json" } });
    if (!answer.ok || answer.redirected) {
      return false; // logged out, or no longer allowed
    }
    show(await answer.json(), cells, news);
    return true;
  }

  function show(told, cells, news) {
    for (const cell of cells) {
      const job = told.jobs[cell.dataset.job];
      if (!job) {
        delete cell.dataset.job; // deleted meanwhile
        continue;
      }
      cell.textContent = job[cell.dataset.what];
      if (!job.running) {
        delete cell.dataset.job;
      }
    }
    if (news && told.newer && !isBusy()) {
      location.reload(); // the list, with the new jobs
    } else if (news) {
      news.hidden = !told.newer;
    } else if (cells.length && !watched().length) {
      location.reload(); // the page of one job, which has its figures now
    }
  }

  async function again() {
    let goesOn = true;
    if (!document.hidden) {
      goesOn = await ask().catch(() => true); // the server may be back soon
    }
    if (goesOn) {
      setTimeout(again, EVERY);
    }
  }

  addEventListener("DOMContentLoaded", () => setTimeout(again, EVERY));
}

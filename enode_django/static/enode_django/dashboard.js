"use strict";

/* Keeps the live dashboard up to date, as long as somebody looks at it. */
(() => {
    const root = document.getElementById("enode-dashboard");
    const find = (selector) => root.querySelector(selector);
    const {Plot, element, fewer, largest, moment, number, swatch, time} = enodeChart;
    const windowSeconds = Number(root.dataset.window), range = root.dataset.range;
    const PATIENCE = 15000;
    const LINKS = JSON.parse(document.getElementById("enode-links").textContent);
    const COUNTED = {letters: "letters", parked: "aggregates"};  // by part, the figure of its rows that waits for somebody
    const MARKS = {ok: "M6,0A6,6 0 1 1 5.9,0Z", degraded: "M6,0L12,11H0Z", bad: "M0,0H12V12H0Z"};

    let steps = [];  // {end, charts}: by chart and line, the value in the step that ends then
    let until = 0;
    let updated = null;
    let pointed = null;  // the place of the step that somebody points at

    const html = (name, className, text) => {
        const made = document.createElement(name);
        if (className) made.className = className;
        if (text !== undefined) made.textContent = text;
        return made;
    };

    /* With a link to the page where one can act, if the user may see it. */
    const linked = (name, className, text) => {
        const made = html(name in LINKS ? "a" : "span", className, text);
        if (name in LINKS) made.href = LINKS[name];
        return made;
    };

    // -- charts -------------------------------------------------------------------------------------------------------

    class Card {
        constructor(section) {
            this.section = section;
            this.name = section.dataset.chart;
            this.plot = new Plot(section.querySelector(".enode-plot"));
            this.details = section.querySelector("details");
            this.details.addEventListener("toggle", () => this.table());
            const heading = section.querySelector("h2");
            heading.replaceChildren(linked(this.name, "", heading.textContent));
            this.plot.onPoint(point);
            this.plot.target.addEventListener("blur", () => point(null));
            this.plot.target.addEventListener("keydown", (event) => this.key(event));
        }

        lines() {
            const names = new Set(steps.flatMap((step) => Object.keys(step.charts[this.name] ?? {})));
            const all = [...names].map((name) => ({
                name, values: steps.map((step) => step.charts[this.name]?.[name] ?? null),
            }));
            return fewer(all.filter((line, _, lines) => lines.length < 3 || line.values.some((value) => value !== null)));
        }

        draw() {
            this.shown = this.lines();
            this.plot.draw(this.shown, steps.map((step) => step.end), until - windowSeconds, until);
            const now = this.now(), unit = this.section.dataset.unit;
            this.section.querySelector(".enode-value").textContent = number(now);
            const peak = largest(this.shown.map((line) => largest(line.values)));
            const lines = this.shown.map((line) => `${line.name} ${number(line.values.at(-1))}`).join(", ");
            this.section.querySelector(".enode-desc").textContent =
                `The last ${range}, in ${unit}. Now: ${lines || "nothing"}. Highest: ${number(peak)}.`;
            this.legend();
            this.table();
        }

        /* The one figure that stands for the chart, in the last step. */
        now() {
            const last = this.shown.map((line) => line.values.at(-1) ?? null);
            if (this.section.dataset.now === "first") return last[0] ?? null;
            if (this.section.dataset.now === "largest") return largest(last);
            const known = last.filter((value) => value !== null);
            return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
        }

        legend() {
            const place = pointed ?? steps.length - 1;
            const items = this.shown.map((line, index) => {
                const item = html("li");
                item.append(swatch(index), html("span", "", line.name), html("b", "", number(line.values[place])));
                return item;
            });
            if (pointed !== null) items.push(html("li", "enode-when", `at ${time(steps[place].end, true)}`));
            this.section.querySelector(".enode-legend").replaceChildren(...items);
            this.plot.point(pointed);
        }

        table() {
            if (!this.details.open) return;
            const row = (kind, cells) => {
                const made = html("tr");
                made.append(...cells.map((cell, place) => html(place ? kind : "th", "", cell)));
                return made;
            };
            const table = html("table"), head = html("thead"), body = html("tbody");
            head.append(row("th", ["until", ...this.shown.map((line) => line.name)]));
            for (let place = steps.length - 1; place >= 0; place--) {
                body.append(row("td", [time(steps[place].end, true), ...this.shown.map((line) => number(line.values[place]))]));
            }
            table.append(head, body);
            this.details.querySelector(".enode-scroll").replaceChildren(table);
        }

        key(event) {
            const last = steps.length - 1, at = pointed ?? last;
            const places = {ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1), Home: 0, End: last, Escape: null};
            if (!(event.key in places) || last < 0) return;
            event.preventDefault();
            point(places[event.key]);
        }
    }

    const cards = [...root.querySelectorAll(".enode-chart")].map((section) => new Card(section));

    function point(place) {
        pointed = place;
        for (const card of cards) card.legend();
    }

    function draw(isReporting) {
        const hasFigures = steps.some((step) => Object.values(step.charts).some((lines) => Object.values(lines).some((value) => value !== null)));
        find(".enode-charts").hidden = !hasFigures;
        find(".enode-empty").hidden = hasFigures;
        find(".enode-empty").textContent = isReporting
            ? "The processors have begun to report. Their first figures come within seconds."
            : `No processor has reported in the last ${range}: run manage.py runprocessors.`;
        if (hasFigures) for (const card of cards) card.draw();
    }

    /* What came again replaces what was there: a report may have come late. */
    function merge(answer) {
        const fresh = answer.ends.map((end, place) => ({
            end,
            charts: Object.fromEntries(Object.entries(answer.charts).map(([chart, lines]) =>
                [chart, Object.fromEntries(Object.entries(lines).map(([line, values]) => [line, values[place]]))])),
        }));
        const end = steps[pointed]?.end;
        until = answer.until || until;
        if (fresh.length) steps = [...steps.filter((step) => step.end < fresh[0].end), ...fresh];
        steps = steps.filter((step) => step.end > until - windowSeconds);
        const place = steps.findIndex((step) => step.end === end);
        pointed = place < 0 ? null : place;
    }

    // -- state --------------------------------------------------------------------------------------------------------

    function showStatus(answer) {
        const parts = Object.entries(answer.parts);
        find(".enode-parts").replaceChildren(...parts.map(([name, part]) => {
            const item = html("li", `enode-is-${part.health}`);
            const mark = element("svg", {viewBox: "0 0 12 12", "aria-hidden": "true"});
            mark.append(element("path", {d: MARKS[part.health]}));
            item.append(mark, linked(name, "", name), html("span", "enode-word", part.health));
            const count = part.rows.reduce((sum, row) => sum + (row[COUNTED[name]] ?? 0), 0);
            if (count) item.append(html("span", "enode-count", number(count)));
            return item;
        }));
        find(".enode-problems").replaceChildren(...parts.flatMap(([name, part]) =>
            part.problems.map((problem) => {
                const item = html("li", `enode-is-${problem.health}`);
                item.append(linked(name, "", name), `: ${problem.reason}`);
                return item;
            })));
        showMailboxes(answer.parts.mailboxes ? answer.parts.mailboxes.rows : []);
    }

    /* How far each mailbox of each runprocessors is. */
    function showMailboxes(rows) {
        const line = (tag, cells) => {
            const made = html("tr", "");
            made.append(...cells.map((cell) => html(tag, "", typeof cell === "number" ? cell.toLocaleString() : cell)));
            return made;
        };
        const lines = rows.flatMap((row) => Object.entries(row.max_offsets).map(([name, max]) => {
            const consumed = row.consume_offsets[name];
            return line("td", [row.supervisor, name, max, consumed, max - consumed]);
        }));
        const table = html("table", "");
        table.append(line("th", ["runprocessors", "mailbox", "messages put in", "messages taken out", "messages waiting"]), ...lines);
        find(".enode-mailboxes").hidden = !lines.length;
        find(".enode-mailboxes .enode-scroll").replaceChildren(table);
    }

    // -- asking -------------------------------------------------------------------------------------------------------

    function say(failure) {
        const line = find(".enode-updated");
        line.classList.toggle("enode-stale", Boolean(failure));
        if (failure) line.setAttribute("role", "alert");
        else line.removeAttribute("role");  // who listens to the page should not hear a time every few seconds
        if (!failure && !until) line.textContent = "";
        else if (!failure) line.replaceChildren(`The last ${range}, as reported until `, moment(until), ".");
        else if (!updated) line.textContent = `Not updated: ${failure}`;
        else line.replaceChildren("Not updated since ", moment(updated), `: ${failure}`);
    }

    async function ask(url) {
        const response = await fetch(url, {headers: {Accept: "application/json"}, redirect: "manual", signal: AbortSignal.timeout(PATIENCE)});
        if (response.type === "opaqueredirect" || response.status === 403) throw new Error("you are not signed in any more; reload the page");
        if (!response.ok) throw new Error(`the server answered ${response.status}`);
        return response.json();
    }

    /* Calls again and again, in the pauses that the page wants, and not while it is hidden. */
    function keepAsking(seconds, once) {
        let timer = null, isAsking = false;
        async function run() {
            clearTimeout(timer);
            if (document.hidden || isAsking) return;
            isAsking = true;
            try {
                await once();
            } finally {
                isAsking = false;
                timer = setTimeout(run, seconds * 1000);
            }
        }
        document.addEventListener("visibilitychange", run);
        run();
    }

    keepAsking(Number(root.dataset.interval), async () => {
        try {
            const answer = await ask(`${root.dataset.figures}&since=${until}`);
            merge(answer);
            updated = Date.now() / 1000;
            draw(answer.reporting);
            say("");
        } catch (error) {
            say(error.name === "TimeoutError" || error instanceof TypeError ? "the server does not answer" : error.message);
        }
    });

    keepAsking(Number(root.dataset.statusInterval), async () => {
        try {
            showStatus(await ask(root.dataset.status));
        } catch {
            find(".enode-parts").replaceChildren();  // why, the line above says
            find(".enode-problems").replaceChildren();
        }
    });

    function redraw() {
        if (steps.length) for (const card of cards) card.draw();
    }

    new ResizeObserver(redraw).observe(root);
    new MutationObserver(redraw).observe(document.documentElement, {attributeFilter: ["data-theme"]});
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();

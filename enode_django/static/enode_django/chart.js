"use strict";

/* Lines over time, drawn by uPlot. A chart is a list of lines, each with a name and a value (or null) for each step. */
const enodeChart = (() => {
    const NS = "http://www.w3.org/2000/svg";
    const DASHES = [[], [5, 3], [1, 3], [8, 3, 1, 3], [3, 3], [10, 4]];
    const MOST_LINES = DASHES.length;

    function element(name, attributes) {
        const made = document.createElementNS(NS, name);
        for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
        return made;
    }

    /* Of very many lines the largest, and the largest value of all others in one. */
    function fewer(lines) {
        if (lines.length <= MOST_LINES) return lines;
        const peak = (line) => Math.max(...line.values.map((value) => value ?? 0));
        const rest = new Set([...lines].sort((one, other) => peak(other) - peak(one)).slice(MOST_LINES - 1));
        const values = lines[0].values.map((_, place) => largest([...rest].map((line) => line.values[place])));
        return [...lines.filter((line) => !rest.has(line)), {name: `${rest.size} others, the largest`, values}];
    }

    function largest(values) {
        const known = values.filter((value) => value !== null);
        return known.length ? Math.max(...known) : null;
    }

    function number(value) {
        if (value === null || value === undefined) return "–";
        if (value >= 1e6) return value.toLocaleString("en", {notation: "compact", maximumFractionDigits: 2});
        return value.toLocaleString("en", {maximumFractionDigits: value >= 100 ? 0 : value >= 10 ? 1 : 2});
    }

    function time(seconds, withSeconds) {
        const timeZone = document.getElementById("enode-dashboard").dataset.timezone;  // the site's
        const format = {hour: "2-digit", minute: "2-digit", hour12: false, timeZone};
        return new Date(seconds * 1000).toLocaleTimeString("en-GB", withSeconds ? {...format, second: "2-digit"} : format);
    }

    /* A time as the other pages show it: ISO 8601 in the site's zone, with the browser's time in its title. */
    function moment(seconds) {
        const timeZone = document.getElementById("enode-dashboard").dataset.timezone, at = new Date(seconds * 1000);
        const parts = new Intl.DateTimeFormat("en", {timeZone, timeZoneName: "longOffset"}).formatToParts(at);
        const offset = parts.find((part) => part.type === "timeZoneName").value.slice("GMT".length) || "+00:00";
        const made = document.createElement("time");
        made.dateTime = at.toISOString();
        made.textContent = at.toLocaleString("sv-SE", {timeZone}) + offset;
        made.title = at.toLocaleString(undefined, {dateStyle: "full", timeStyle: "long"});
        return made;
    }

    /* Read at each drawing, since themes change. */
    function colour(variable) {
        return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
    }

    class Plot {
        constructor(target) {
            this.target = target;
            this.uplot = new uPlot(this.options(), [[], ...DASHES.map(() => [])], target);
        }

        options() {
            const text = {stroke: () => colour("--body-quiet-color"), font: "11px sans-serif", ticks: {show: false}};
            const hairline = {stroke: () => colour("--hairline-color"), width: 1};
            return {
                width: 0,
                height: 0,
                padding: [8, 20, 0, 0],  // half of the last label is to the right of its tick
                legend: {show: false},
                cursor: {y: false, points: {show: false}, drag: {x: false}, bind: {mousemove: () => null, mouseleave: () => null}},
                scales: {x: {range: () => [this.from, this.to]}, y: {range: (_, __, top) => [0, top > 0 ? top * 1.1 : 1]}},
                axes: [
                    {...text, size: 20, gap: 4, grid: {show: false}, values: (_, times) => times.map((at) => time(at))},
                    {...text, size: 46, gap: 6, grid: hairline, space: 25, values: (_, values) => values.map(number)},
                ],
                series: [{}, ...DASHES.map((dash, place) => this.series(dash, `--enode-line-${place + 1}`))],
            };
        }

        series(dash, variable) {
            return {dash, width: 2, stroke: () => colour(variable), fill: () => this.isSingle ? `${colour(variable)}1a` : null};
        }

        /* `ends`: the time of each step, `from` and `to`: what the axis shows. */
        draw(lines, ends, from, to) {
            Object.assign(this, {ends, from, to, isSingle: lines.length === 1});
            this.target.classList.toggle("enode-nothing", !lines.length);
            const unknown = ends.map(() => null);
            this.uplot.batch(() => {
                this.uplot.setSize({width: this.target.clientWidth, height: this.target.clientHeight});
                this.uplot.setData([ends, ...DASHES.map((_, place) => lines[place]?.values ?? unknown)]);
            });
        }

        /* Calls back with the place of the step that a pointer is nearest to, and with null when it leaves. */
        onPoint(callback) {
            const over = this.uplot.over;
            over.addEventListener("pointermove", (event) => callback(this.uplot.posToIdx(event.offsetX)));
            over.addEventListener("pointerleave", () => callback(null));
        }

        point(place) {
            const end = this.ends?.[place];
            this.uplot.setCursor({left: end === undefined ? -10 : this.uplot.valToPos(end, "x"), top: 0});
        }
    }

    /* What stands beside a line's name. */
    function swatch(place) {
        const svg = element("svg", {viewBox: "0 0 20 8", "aria-hidden": "true", class: `enode-line-${place + 1}`});
        svg.append(element("path", {d: "M1,4H19", "stroke-dasharray": DASHES[place].join(" ")}));
        return svg;
    }

    return {Plot, element, fewer, largest, moment, number, swatch, time};
})();

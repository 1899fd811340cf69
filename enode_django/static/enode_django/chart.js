"use strict";

/* Draws lines over time as SVG. A chart is a list of lines, each with a name and a value (or null) for each step. */
const enodeChart = (() => {
    const NS = "http://www.w3.org/2000/svg";
    const MARGIN = {left: 46, right: 6, top: 8, bottom: 20};
    const DASHES = ["", "5 3", "1 3", "8 3 1 3", "3 3", "10 4"];
    const MOST_LINES = DASHES.length;

    function element(name, attributes, text) {
        const made = document.createElementNS(NS, name);
        for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
        if (text !== undefined) made.textContent = text;
        return made;
    }

    /* Of very many lines the largest, and the largest value of all others in one. */
    function fewer(lines) {
        if (lines.length <= MOST_LINES) return lines;
        const peak = (line) => Math.max(...line.values.map((value) => value ?? 0));
        const rest = new Set([...lines].sort((one, other) => peak(other) - peak(one)).slice(MOST_LINES - 1));
        const values = lines[0].values.map((_, place) => largest([...rest].map((line) => line.values[place])));
        return [...lines.filter((line) => !rest.has(line)), {name: `${rest.size} others, the most`, values}];
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
        const format = {hour: "2-digit", minute: "2-digit", hour12: false};
        return new Date(seconds * 1000).toLocaleTimeString("en-GB", withSeconds ? {...format, second: "2-digit"} : format);
    }

    /* The next of 1, 2, 2.5, 5, 10 … that is not below a value. */
    function ceiling(value) {
        const power = 10 ** Math.floor(Math.log10(value));
        return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((bound) => bound >= value * 0.999);
    }

    class Plot {
        constructor(svg) {
            this.svg = svg;
            this.drawn = element("g", {});
            svg.append(this.drawn);
        }

        /* `ends`: the time of each step, `from` and `to`: what the axis shows. */
        draw(lines, ends, from, to, width) {
            this.width = this.svg.clientWidth || 300;
            this.height = this.svg.clientHeight || 136;
            this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
            Object.assign(this, {ends, from, to, step: width});
            this.top = ceiling(Math.max(1e-9, largest(lines.map((line) => largest(line.values) ?? 0)) || 1));
            this.cursor = element("line", {class: "enode-cursor", y1: MARGIN.top, y2: this.height - MARGIN.bottom, visibility: "hidden"});
            const shapes = lines.flatMap((line, place) => this.shape(line, place, lines.length));
            this.drawn.replaceChildren(...this.axes(), ...(shapes.length ? shapes : [this.nothing()]), this.cursor);
        }

        x(seconds) {
            const share = (seconds - this.from) / (this.to - this.from);
            return MARGIN.left + share * (this.width - MARGIN.left - MARGIN.right);
        }

        y(value) {
            return this.height - MARGIN.bottom - (value / this.top) * (this.height - MARGIN.top - MARGIN.bottom);
        }

        axes() {
            const made = [];
            for (const value of [0, this.top / 2, this.top]) {
                const y = Math.round(this.y(value));
                made.push(element("line", {class: "enode-grid", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y}));
                made.push(element("text", {x: MARGIN.left - 6, y: y + 4, "text-anchor": "end"}, number(value)));
            }
            for (let seconds = Math.ceil(this.from / 300) * 300; seconds <= this.to; seconds += 300) {
                const x = this.x(seconds);
                const anchor = x > this.width - 20 ? "end" : "middle";
                made.push(element("text", {x, y: this.height - 5, "text-anchor": anchor}, time(seconds)));
            }
            return made;
        }

        shape(line, place, count) {
            const made = [];
            for (const stretch of this.stretches(line.values)) {
                const points = stretch.map(([end, value]) => `${this.x(end).toFixed(1)},${this.y(value).toFixed(1)}`);
                const classes = `enode-line enode-line-${place + 1}`;
                if (points.length === 1) {
                    const [x, y] = points[0].split(",");
                    made.push(element("circle", {class: `enode-line-${place + 1}`, cx: x, cy: y, r: 1.5}));
                    continue;
                }
                if (count === 1) {
                    const [first, last] = [stretch[0][0], stretch.at(-1)[0]].map((end) => this.x(end).toFixed(1));
                    const floor = this.y(0).toFixed(1);
                    made.push(element("path", {class: `enode-area enode-line-${place + 1}`, d: `M${first},${floor}L${points.join("L")}L${last},${floor}Z`}));
                }
                made.push(element("path", {class: classes, d: `M${points.join("L")}`, "stroke-dasharray": DASHES[place]}));
            }
            return made;
        }

        nothing() {
            const x = (MARGIN.left + this.width - MARGIN.right) / 2;
            return element("text", {x, y: this.height / 2 - 6, "text-anchor": "middle"}, "nothing was measured");
        }

        /* Runs of steps with values, side by side. */
        stretches(values) {
            const found = [];
            let before = null;
            values.forEach((value, place) => {
                if (value === null) return;
                if (before === null || this.ends[place] - before > this.step * 1.5) found.push([]);
                found.at(-1).push([this.ends[place], value]);
                before = this.ends[place];
            });
            return found;
        }

        /* The place of the step that is nearest to an x coordinate of the page. */
        placeAt(pageX) {
            const seconds = this.from + (pageX - this.svg.getBoundingClientRect().left - this.x(this.from)) / (this.x(this.to) - this.x(this.from)) * (this.to - this.from);
            let nearest = null;
            this.ends.forEach((end, place) => {
                if (nearest === null || Math.abs(end - seconds) < Math.abs(this.ends[nearest] - seconds)) nearest = place;
            });
            return nearest;
        }

        point(place) {
            if (!this.cursor) return;
            const end = place === null ? undefined : this.ends[place];
            this.cursor.setAttribute("visibility", end === undefined ? "hidden" : "visible");
            if (end === undefined) return;
            const x = Math.round(this.x(end));
            this.cursor.setAttribute("x1", x);
            this.cursor.setAttribute("x2", x);
        }
    }

    /* What stands beside a line's name. */
    function swatch(place) {
        const svg = element("svg", {viewBox: "0 0 20 8", "aria-hidden": "true"});
        svg.append(element("path", {class: `enode-line enode-line-${place + 1}`, d: "M1,4H19", "stroke-dasharray": DASHES[place]}));
        return svg;
    }

    return {Plot, element, fewer, largest, number, swatch, time};
})();

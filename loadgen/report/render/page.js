"use strict";
(() => {
  const COLOR_KEYS = new Set(["color", "fillcolor", "gridcolor", "linecolor", "paper_bgcolor",
    "plot_bgcolor", "bordercolor", "bgcolor", "zerolinecolor"]);

  // Colours are names of the page's custom properties, so that a chart follows the theme.
  const themed = (value, key) => {
    if (Array.isArray(value)) return value.map((item) => themed(item, null));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, k)]));
    }
    if (typeof value === "string" && COLOR_KEYS.has(key) && value.startsWith("$")) {
      return getComputedStyle(document.documentElement).getPropertyValue(`--${value.slice(1)}`).trim();
    }
    return value;
  };

  const root = document.documentElement;

  // RFC 1951 and 1952: the browser's own decompression is asynchronous, and a page that is printed
  // at once needs its charts before it returns to the browser.
  const gunzip = (input) => {
    const view = new DataView(input.buffer);
    const output = new Uint8Array(view.getUint32(input.length - 4, true));
    let at = 10, held = 0, bits = 0, end = 0;
    const take = (count) => {
      while (bits < count) { held |= input[at++] << bits; bits += 8; }
      const value = held & ((1 << count) - 1);
      held >>>= count; bits -= count;
      return value;
    };
    const tree = (lengths) => {
      const counts = new Uint16Array(16), symbols = [], offsets = new Uint16Array(17);
      for (const length of lengths) counts[length]++;
      counts[0] = 0;
      for (let length = 1; length < 16; length++) offsets[length + 1] = offsets[length] + counts[length];
      lengths.forEach((length, symbol) => { if (length) symbols[offsets[length]++] = symbol; });
      return { counts, symbols };
    };
    const decode = ({ counts, symbols }) => {
      let code = 0, first = 0, index = 0;
      for (let length = 1; ; length++) {
        code |= take(1);
        if (code - counts[length] < first) return symbols[index + code - first];
        index += counts[length];
        first = (first + counts[length]) << 1;
        code <<= 1;
      }
    };
    const bases = (first, extra) => extra.map((count) => { const base = first; first += 1 << count; return base; });
    const lengthBits = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
    const distanceBits = Array.from({ length: 30 }, (_, place) => Math.max(0, (place >> 1) - 1));
    const lengthBase = bases(3, lengthBits), distanceBase = bases(1, distanceBits);
    lengthBase[28] = 258;
    const fixed = Array.from({ length: 288 }, (_, n) => (n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8));
    const order = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    const dynamic = () => {
      const literals = take(5) + 257, distances = take(5) + 1, used = take(4) + 4;
      const codes = new Array(19).fill(0), lengths = [];
      for (let place = 0; place < used; place++) codes[order[place]] = take(3);
      const meta = tree(codes);
      while (lengths.length < literals + distances) {
        const symbol = decode(meta);
        if (symbol < 16) lengths.push(symbol);
        else if (symbol === 16) lengths.push(...new Array(3 + take(2)).fill(lengths.at(-1)));
        else lengths.push(...new Array(symbol === 17 ? 3 + take(3) : 11 + take(7)).fill(0));
      }
      return [tree(lengths.slice(0, literals)), tree(lengths.slice(literals))];
    };
    for (let last = 0; !last; ) {
      last = take(1);
      const kind = take(2);
      if (kind === 0) {
        held = bits = 0;
        const count = view.getUint16(at, true);
        output.set(input.subarray(at + 4, at + 4 + count), end);
        at += 4 + count; end += count;
        continue;
      }
      const [literals, distances] = kind === 1 ? [tree(fixed), tree(new Array(30).fill(5))] : dynamic();
      for (let symbol; (symbol = decode(literals)) !== 256; ) {
        if (symbol < 256) { output[end++] = symbol; continue; }
        const length = lengthBase[symbol - 257] + take(lengthBits[symbol - 257]);
        const place = decode(distances);
        const distance = distanceBase[place] + take(distanceBits[place]);
        for (let left = length; left > 0; left--, end++) output[end] = output[end - distance];
      }
    }
    return output;
  };

  // What charts draw, and the library that draws it, are packed; nothing is unpacked but what is shown.
  const unpack = (element) => {
    const text = atob(element.textContent);
    return new TextDecoder().decode(gunzip(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  };
  const figures = new Map();
  const figureOf = (plot) => {
    if (!figures.has(plot)) figures.set(plot, JSON.parse(unpack(plot.nextElementSibling)));
    return figures.get(plot);
  };
  const load = () => {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = unpack(document.getElementById("plotly"));
    document.head.append(script);
  };

  const drawn = new Set();
  const draw = (plot) => {
    load();
    const figure = themed(figureOf(plot), null);
    const narrow = plot.clientWidth < 520;
    // The legend of a narrow chart takes a line for each series: give it that room on top.
    const legend = narrow && figure.data.length > 2 ? 16 * figure.data.length : 0;
    // On paper two charts shall fit on a page.
    const scale = root.classList.contains("print") ? 0.7 : 1;
    plot.style.height = `${scale * Number(plot.dataset.height) + legend}px`;
    const layout = { ...figure.layout, autosize: true, height: plot.clientHeight };
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: figure.layout.paper_bgcolor };
    if (narrow) layout.margin = { ...layout.margin, l: 40, r: 8 };
    Plotly.react(plot, figure.data, layout, {
      responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
    drawn.add(plot);
  };

  // Of many runs each is folded: its charts are drawn when it is opened.
  const shown = (what) => [...document.querySelectorAll(what)].filter((one) => !one.closest("details:not([open])"));
  const redraw = () => [...drawn].forEach(draw);
  // One after another: between two of them the browser shows what there is, and hears the reader.
  const drawAll = async () => {
    for (const plot of shown(".plot")) {
      await new Promise((turn) => setTimeout(turn));
      if (!drawn.has(plot)) draw(plot);
    }
    root.dataset.drawn = String(drawn.size);
    sayWhatScrolls();
  };
  const sayWhatScrolls = () => {
    const scrolls = shown(".wide").map((wide) => [wide, wide.scrollWidth > wide.clientWidth + 1]);
    for (const [wide, told] of scrolls) wide.classList.toggle("scrolls", told);
  };
  sayWhatScrolls();
  addEventListener("resize", sayWhatScrolls);
  drawAll();
  for (const fold of document.querySelectorAll("details")) {
    fold.addEventListener("toggle", () => {
      // Theme and width may change in the meantime: what is opened again is drawn again.
      if (!fold.open) fold.querySelectorAll(".plot").forEach((plot) => drawn.delete(plot));
      drawAll();
    });
  }
  for (const button of document.querySelectorAll("button.download")) {
    button.addEventListener("click", () => {
      const plot = button.closest("figure").querySelector(".plot");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([figureOf(plot).table], { type: "text/csv" }));
      link.download = button.dataset.file;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
  const follow = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const fold = target && target.querySelector("details.run");
    if (fold && !fold.open) { fold.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  follow();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    root.classList.add("print");
    redraw();
    shown(".plot").filter((plot) => !drawn.has(plot)).forEach(draw);
  });
  addEventListener("afterprint", () => { root.classList.remove("print"); redraw(); });
})();

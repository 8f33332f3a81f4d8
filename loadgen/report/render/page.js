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

  // What charts draw, and the library that draws it, are packed; nothing is unpacked but what is shown.
  const unpack = (element) => {
    const text = atob(element.textContent);
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const once = (make) => {
    const made = new Map();
    const get = (element) => {
      if (!made.has(element)) made.set(element, make(element));
      return made.get(element);
    };
    get.forget = (element) => made.delete(element);
    return get;
  };
  const figureOf = once(async (plot) => JSON.parse(await unpack(plot.nextElementSibling)));
  const library = once(async (element) => {
    const script = document.createElement("script");
    script.textContent = await unpack(element);
    document.head.append(script);
  });

  const figures = new Map();
  const draw = (plot) => {
    const figure = themed(figures.get(plot), null);
    const narrow = plot.clientWidth < 520;
    // The legend of a narrow chart takes a line for each series: give it that room on top.
    const legend = narrow && figure.data.length > 2 ? 16 * figure.data.length : 0;
    // On paper two charts shall fit on a page.
    const scale = root.classList.contains("print") ? 0.7 : 1;
    plot.style.height = `${scale * Number(plot.dataset.height) + legend}px`;
    const layout = { ...figure.layout, autosize: true, height: plot.clientHeight };
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: figure.layout.paper_bgcolor };
    if (narrow) layout.margin = { ...layout.margin, l: 40, r: 8 };
    return Plotly.react(plot, figure.data, layout, {
      responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
  };

  // Of many runs each is folded: its charts are drawn when it is opened.
  const folded = (one) => one.closest("details:not([open])");
  const shown = (what) => [...document.querySelectorAll(what)].filter((one) => !folded(one));
  const redraw = () => Promise.all(shown(".plot").filter((plot) => figures.has(plot)).map(draw));
  // One after another: between two of them the browser shows what there is, and hears the reader.
  const drawOne = once(async (plot) => {
    await library(document.getElementById("plotly"));
    figures.set(plot, await figureOf(plot));
    await draw(plot);
    await new Promise((turn) => setTimeout(turn));
  });
  const drawAll = async () => {
    for (const plot of shown(".plot")) if (!folded(plot)) await drawOne(plot);
    root.dataset.drawn = String(figures.size);
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
      if (!fold.open) fold.querySelectorAll(".plot").forEach(drawOne.forget);
      drawAll();
    });
  }
  for (const button of document.querySelectorAll("button.download")) {
    button.addEventListener("click", async () => {
      const plot = button.closest("figure").querySelector(".plot");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([(await figureOf(plot)).table], { type: "text/csv" }));
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
  addEventListener("beforeprint", () => { root.classList.add("print"); redraw(); });
  addEventListener("afterprint", () => { root.classList.remove("print"); redraw(); });
})();

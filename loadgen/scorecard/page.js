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

  const draw = (plot) => {
    const figure = themed(JSON.parse(plot.nextElementSibling.textContent), null);
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
  const shown = () => [...document.querySelectorAll(".plot")]
    .filter((plot) => !plot.closest("details:not([open])"));
  const drawAll = () => Promise.all(shown().map(draw));
  const told = () => { root.dataset.drawn = String(shown().length); };
  drawAll().then(told);
  for (const folded of document.querySelectorAll("details.run")) {
    folded.addEventListener("toggle", () => drawAll().then(told));
  }
  const follow = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const folded = target && target.querySelector("details.run");
    if (folded && !folded.open) { folded.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  follow();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { root.classList.add("print"); drawAll(); });
  addEventListener("afterprint", () => { root.classList.remove("print"); drawAll(); });
})();

"use strict";
(() => {
  const COLOR_KEYS = new Set(["color", "fillcolor", "gridcolor", "linecolor", "paper_bgcolor",
    "plot_bgcolor", "bordercolor", "bgcolor"]);

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

  const draw = (plot) => {
    const figure = themed(JSON.parse(plot.nextElementSibling.textContent), null);
    const narrow = plot.clientWidth < 520;
    // The legend of a narrow chart takes a line for each series: give it that room on top.
    const legend = narrow && figure.data.length > 2 ? 16 * figure.data.length : 0;
    plot.style.height = `${Number(plot.dataset.height) + legend}px`;
    const layout = { ...figure.layout, autosize: true, height: plot.clientHeight };
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: figure.layout.paper_bgcolor };
    if (narrow) layout.margin = { ...layout.margin, l: 40, r: 8 };
    return Plotly.react(plot, figure.data, layout, {
      responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
  };

  const plots = [...document.querySelectorAll(".plot")];
  const drawAll = () => Promise.all(plots.map(draw));
  const root = document.documentElement;
  drawAll().then(() => { root.dataset.drawn = String(plots.length); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { root.classList.add("print"); drawAll(); });
  addEventListener("afterprint", () => { root.classList.remove("print"); drawAll(); });
})();

const run = document.querySelector("details.run[open]") ?? document.querySelector("details.run");
const width = () => Math.round(run.querySelector(".plot svg").getBoundingClientRect().width);
const later = () => new Promise((turn) => setTimeout(turn, 1000));
(async () => {
  run.open = true;
  await later();
  const before = width();
  run.open = false;
  await later();
  document.querySelector("main").style.width = "400px";
  run.open = true;
  await later();
  console.log(["widths", before, width(), run.querySelector(".plot").clientWidth].join(" "));
})();

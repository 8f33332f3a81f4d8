addEventListener("load", () => setTimeout(() => {
  const [card, chart] = [".overview", ".main-svg"].map((one) => document.querySelector(one));
  console.log([getComputedStyle(card).backgroundColor, chart.style.background].join(" "));
}, 2000));

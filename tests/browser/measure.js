for (const fold of document.querySelectorAll("details")) fold.open = true;
addEventListener("load", () => setTimeout(() => {
  const wide = [...document.querySelectorAll(".wide")].filter(
    (one) => one.scrollWidth > one.clientWidth + 1);
  const told = wide.filter((one) => one.classList.contains("scrolls"));
  const across = document.documentElement.scrollWidth;
  console.log(["wide", across, innerWidth, told.length, wide.length].join(" "));
}, 500));

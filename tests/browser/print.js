dispatchEvent(new Event("beforeprint"));
const open = (one) => !one.closest("details:not([open])");
const plots = [...document.querySelectorAll(".plot")].filter(open);
const drawn = plots.filter((one) => one.querySelector(".main-svg"));
console.log(`print ${drawn.length} of ${plots.length}`);

"use strict";
for (const grid of document.querySelectorAll(".grid")) {
  const body = grid.querySelector("tbody");
  const rows = Array.from(body.rows);
  const search = grid.querySelector("input");
  const choice = grid.querySelector("select");
  const count = grid.querySelector("output");
  let texts = null;
  const show = () => {
    const words = search ? search.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    if (words.length && !texts) texts = rows.map((row) => row.textContent.toLowerCase());
    let shown = 0;
    rows.forEach((row, place) => {
      const fits = (!choice || !choice.value || row.dataset.choice === choice.value) &&
        words.every((word) => texts[place].includes(word));
      if (row.hidden === fits) row.hidden = !fits;
      shown += fits;
    });
    if (count) count.textContent = `${shown} of ${rows.length} rows`;
  };
  if (search) search.addEventListener("input", show);
  if (choice) choice.addEventListener("change", show);
  const heads = Array.from(grid.querySelectorAll("thead th"));
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keys = new Map(rows.map((row) => {
      const cell = row.cells[column];
      return [row, cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v)];
    }));
    const numbers = rows.some((row) => typeof keys.get(row) === "number");
    rows.slice().sort((first, second) => {
      const a = keys.get(first), b = keys.get(second);
      if (numbers) {
        const known = (typeof b === "number") - (typeof a === "number");
        return known || (typeof a === "number" ? (up ? a - b : b - a) : 0);
      }
      return (up ? 1 : -1) * a.localeCompare(b, undefined, { numeric: true });
    }).forEach((row) => body.append(row));
  }));
  if (choice) show();
}

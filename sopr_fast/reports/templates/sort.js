"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, place) => {
    const cell = row.cells[place];
    if (!heads[place].classList.contains("number")) return cell.dataset.key ?? cell.textContent;
    return cell.dataset.key === undefined ? NaN : Number(cell.dataset.key);
  };
  const compare = (a, b) => {
    if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
    return a - b;
  };
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const down = before === "none" ? numeric : before === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(row, place), row]);
      const known = rows.filter(([value]) => !Number.isNaN(value));
      const unknown = rows.filter(([value]) => Number.isNaN(value));
      known.sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
      body.append(...[...known, ...unknown].map(([, row]) => row));
    });
  });
}

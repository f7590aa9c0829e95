"use strict";
const SHOWN = 20;
for (const table of document.querySelectorAll("table")) {
  if (!table.tHead) continue;
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  let every = body.rows.length <= SHOWN;
  let words = "";
  const show = () => {
    let count = 0;
    for (const row of body.rows) {
      const fits = row.textContent.toLowerCase().includes(words);
      row.hidden = !fits || (!every && count >= SHOWN);
      count += fits;
    }
    return count;
  };
  if (!every) {
    const label = document.createElement("label");
    label.append("Filter ");
    const input = document.createElement("input");
    input.type = "search";
    label.append(input);
    const more = document.createElement("button");
    more.type = "button";
    const status = document.createElement("span");
    status.setAttribute("role", "status");
    const update = () => {
      const count = show();
      status.textContent = every || count <= SHOWN ? `${count} ${count === 1 ? "row" : "rows"}` : `the first ${SHOWN} of ${count} rows`;
      more.textContent = every ? `Show ${SHOWN}` : `Show all ${count}`;
    };
    input.addEventListener("input", () => { words = input.value.toLowerCase(); update(); });
    more.addEventListener("click", () => { every = !every; update(); });
    const bar = document.createElement("p");
    bar.className = "filter";
    bar.append(label, more, status);
    table.parentElement.before(bar);
    update();
  }
  const key = (row, place) => {
    const cell = row.cells[place];
    if (!heads[place].classList.contains("number")) return cell.textContent;
    return cell.dataset.key === undefined ? NaN : Number(cell.dataset.key);
  };
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const down = before === "none" ? head.classList.contains("number") : before === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(row, place), row]);
      const known = rows.filter(([value]) => !Number.isNaN(value));
      known.sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
      body.append(...[...known, ...rows.filter(([value]) => Number.isNaN(value))].map(([, row]) => row));
      show();
    });
  });
}

// The theme wraps each copy button in a nav, which adds a landmark without a name for every block of code.
const unmark = () => document.querySelectorAll("nav.md-code__nav").forEach((nav) => nav.setAttribute("role", "none"));
new MutationObserver(unmark).observe(document.body, { childList: true, subtree: true });
unmark();
